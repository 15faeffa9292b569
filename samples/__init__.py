"""Small models and the scripts that make them; every sample is a test."""
