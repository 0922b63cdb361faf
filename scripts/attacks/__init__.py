"""Torture suite: seeded random attacks on readers and commands, for as long as it is given.

`scripts/torture` runs it (docs/notes/torture.md); each module is a family of attacks.
"""
