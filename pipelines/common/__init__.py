"""Shared parts of several jobs: `config` and `option` (settings), `exits`, `models` (paths)."""
