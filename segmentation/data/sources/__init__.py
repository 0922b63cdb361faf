"""Sources of scans and labels: the common interface in base.py, and one module per dataset."""
