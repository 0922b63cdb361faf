"""Segmentations over HTTP: a queue on disk, the batch engine behind it, an interface before it."""
