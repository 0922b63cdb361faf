"""The jobs about data: download, prepare, report on a store, and show its slices."""
