"""The standing torture suite: attacks on readers and commands, drawn by a seed, without end.

`scripts/torture` runs them (docs/notes/torture.md); one file a family of attacks.
"""
