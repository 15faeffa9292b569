"""Processes of their own: pools of workers, messages between them, programs that are run, bounded waits for their ends.
Knows nothing of what is called."""
