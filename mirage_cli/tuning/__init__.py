"""Which candidate of a fragment is fastest: built, checked, timed on a GPU, and the times kept. Knows no model."""
