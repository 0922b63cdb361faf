"""What several jobs share: `config` and `option` (settings), `exits`, `models` (where they are)."""
