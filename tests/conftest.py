"""Fixtures of all tests."""

from tests.optimized import cache, copied, optimized, shared_folder

__all__ = ["cache", "copied", "optimized", "shared_folder"]
