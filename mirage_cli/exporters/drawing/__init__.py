"""What drawings and plots are made of: SVG elements, and numbers as short labels."""
