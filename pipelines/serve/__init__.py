"""HTTP service for segmentations, with a job queue that survives a restart."""
