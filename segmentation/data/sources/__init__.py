"""Where scans and labels come from: what every source gives in base.py, and a file a dataset."""
