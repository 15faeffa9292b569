"""What the functions of `templates/include/mirage/` mean, a module for each header."""
