"""Plots of the page: the roofline, and times against sizes."""
