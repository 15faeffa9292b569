"""Summaries of what is there and what changed: models, output folders, caches, the machine. Reads what runs wrote;
changes nothing but caches."""
