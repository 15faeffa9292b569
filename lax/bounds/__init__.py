"""Bounds of programs: the chance that a test over prime fields errs, and the power of huge inputs with which values
grow."""
