"""From a scan to labels: predictions of single views, their fusion, and uncertainty."""
