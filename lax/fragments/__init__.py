"""Which parts of a graph become programs of their own, under which key and name."""
