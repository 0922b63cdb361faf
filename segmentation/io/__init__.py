"""Reading of scans and tables with checks, and atomic writing of files."""
