"""Processes of their own: calls in them, messages between them, programs that are run, bounded waits for their ends.
Knows nothing of what is called."""

#: objects of three ages after which processes of our own look for garbage: a plan makes many that live to its end
COLLECTED = (50_000, 20, 50)
