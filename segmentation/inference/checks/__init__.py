"""What can be known of a segmentation without a truth: a function a check, a table of limits."""
