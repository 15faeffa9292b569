"""The meaning of tensor programs: element types and extents here, all else in the packages below. Needs numpy only."""
