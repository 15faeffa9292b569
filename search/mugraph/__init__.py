"""The muGraph: data, text, JSON, its evaluation in any domain, and what is read off it."""
