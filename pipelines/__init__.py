"""Composition and side effects: config, files, devices, the command line."""
