"""The report of a run as plain data, its schema, and readers of the files in an output folder. Knows no model and no
device."""
