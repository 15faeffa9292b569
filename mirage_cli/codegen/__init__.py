"""From muGraphs to source text: tile programs, their lowering, and the templates that print them."""
