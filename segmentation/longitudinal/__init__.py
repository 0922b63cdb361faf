"""Joint segmentation and comparison of several scans of one participant."""
