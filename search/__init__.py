"""Which muGraphs are equal to a program, and cheap: the story of the search. Needs numpy and pyyaml only."""
