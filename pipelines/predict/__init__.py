"""The job predict: scans in, label maps, volumes and grades out."""
