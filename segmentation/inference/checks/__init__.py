"""Checks of a segmentation without a reference: one function per check, one table of limits."""
