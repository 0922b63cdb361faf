"""Sources of scans and labels, splits, slice stores and augmentation."""
