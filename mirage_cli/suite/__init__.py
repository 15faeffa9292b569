"""The suite of published cases: each is optimized like any model, judged against float64 and timed beside its peers on a
GPU."""
