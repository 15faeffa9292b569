"""Fuzzing of everything that mirage reads from others.

`targets` are the readers with their seeds, `mutations` change inputs by what they are made of, `guided` runs both under
atheris (`make fuzz`), which follows new coverage. Inputs that once showed a fault lie in `corpus/TARGET` and are tests.
"""
