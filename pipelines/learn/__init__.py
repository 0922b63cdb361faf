"""From corrected label maps to a model of one's own, and which scan to correct next."""
