"""The story of `optimize`: read, partition, plan, tune, build, check, patch, write; and what is answered from earlier
runs."""
