"""Every architecture of docs/reference/models.md with random weights: exported in every form, and what mirage finds in each.

`python -m samples.zoo --help` (needs torch and transformers); `make models` writes the page.
"""
