"""Views of a volume, and the way to a common 1 mm grid, the working grid, and back."""
