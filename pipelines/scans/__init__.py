"""Finding scans and label maps: folders, BIDS datasets, SUBJECTS_DIRs, lists, stores."""
