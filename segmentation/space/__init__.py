"""Views of a volume, and the way to the working grid and back."""
