"""What code generation is asked for, and what it gives back."""
