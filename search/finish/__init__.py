"""Block graphs made into kernel graphs: stabilised, fused, scaled, split in two; and the way back."""
