"""Execution of long tasks: worker processes, locks on folders, and progress on the terminal.

`process` sets up one process and its signals. `pool` runs several processes. `lock` prevents two
runs from using the same folder. `progress` reports how far a run is.
"""
