"""Attention behind caches, taken apart before models are read."""
