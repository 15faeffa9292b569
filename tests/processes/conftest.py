"""What is tested here are processes: they are started."""

import pytest


@pytest.fixture(autouse=True)
def _started(started: None) -> None:
    """For each test."""
