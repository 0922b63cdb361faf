"""The jobs evaluate and report."""
