"""The run of a kernel: its statements run for all threads of some blocks at once, over any domain, with memories, barriers and
copies as a GPU may order them. Knows instructions, no engines."""
