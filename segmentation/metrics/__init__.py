"""Metrics of label maps: overlap, surface distances, volumes and statistics."""
