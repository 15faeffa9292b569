"""What is there and what changed, shown: models, output folders, caches, the machine. Reads what runs wrote; changes
nothing but caches."""
