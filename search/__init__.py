"""Which muGraphs are equal to a program, and cheap. Needs numpy and pyyaml only."""
