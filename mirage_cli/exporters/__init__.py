"""Output that people read: drawings of muGraphs, the report as a page and as text. Reads reports and muGraph files,
no models."""
