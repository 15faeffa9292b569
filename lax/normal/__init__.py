"""The normal form of programs, in which equal mathematics spelled differently is equal text."""
