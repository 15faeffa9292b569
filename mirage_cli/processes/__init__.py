"""Processes of their own: calls in them, messages between them, programs that are run, bounded waits for their ends.
Knows nothing of what is called."""
