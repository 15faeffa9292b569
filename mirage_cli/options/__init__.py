"""What a run can be asked to do: options, how they are written on the command line and in files, dimensions, debugging."""
