"""trinat's library: brain segmentation of T1-weighted MRI with one QuickNAT per view."""
