"""The QuickNAT family: blocks, network, losses, checkpoints, shipped weights."""
