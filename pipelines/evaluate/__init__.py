"""The jobs evaluate, report and norms."""
