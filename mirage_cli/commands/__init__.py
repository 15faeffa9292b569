"""The command line: each command parses, calls, prints and returns its exit code. Heavy modules are imported when a
command runs."""
