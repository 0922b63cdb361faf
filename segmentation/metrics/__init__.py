"""How good a label map is: overlap, surface, volume, statistics."""
