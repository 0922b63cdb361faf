"""Job execution: worker processes, clusters, locks, progress.

`process` sets up one process and its signals. `pool` runs several processes on this machine,
`cluster` on others. `lock` prevents two runs from using the same folder. `progress` reports how far
a run is.
"""
