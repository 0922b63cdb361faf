"""From corrected label maps to a model of one's own."""
