"""Benchmarks: one module a subject, each prints a table of medians and ratios."""
