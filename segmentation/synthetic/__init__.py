"""Synthetic scans: the digital phantom, label maps, and what a scanner makes of them."""
