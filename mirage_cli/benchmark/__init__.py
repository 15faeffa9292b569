"""An output folder timed: its fragments and its whole model, original against patched. Wrong answers are never timed."""
