"""From a scan to labels: one view, fusion, uncertainty."""
