"""The jobs evaluate (with repeat), report and norms."""
