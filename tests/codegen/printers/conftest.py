"""The compiler that the tests of libraries use."""

from tests.backends.conftest import cxx

__all__ = ["cxx"]
