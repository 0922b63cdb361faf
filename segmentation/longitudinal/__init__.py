"""Several scans of one person: brought to one space, segmented together, compared in time."""
