"""What the pages and services of trinat have in common: who may ask, and how they start."""
