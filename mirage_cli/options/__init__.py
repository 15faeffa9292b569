"""Options of a run: how they are written on the command line and in files, dimensions, debugging."""
