"""What a tensor program means: element types and extents here, all else in the packages below. Needs numpy only."""
