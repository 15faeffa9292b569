"""One fragment planned for every target: search, ranges of sizes, ranking, rendering and proof. Knows no whole model and
no compiler."""
