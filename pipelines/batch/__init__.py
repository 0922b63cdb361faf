"""From many scans to one output folder: what to do, doing it, and what was done."""
