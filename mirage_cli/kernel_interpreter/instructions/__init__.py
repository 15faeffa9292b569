"""Meanings of the functions of `templates/include/mirage/`, a module for each header."""
