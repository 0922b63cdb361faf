"""How jobs run: processes that work on many items, clusters, signals that stop a run."""
