"""The service: segmentations over HTTP, with a job queue that survives a restart."""
