"""Scans in and out: what a readable scan is, and how files appear whole."""
