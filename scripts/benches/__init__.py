"""Benchmarks: one module per subject; each prints a table of medians and ratios."""
