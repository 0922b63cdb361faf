"""Job execution: processes that work on many items, clusters, locks, progress.

`process` sets up one process and its signals, `pool` runs several processes, `cluster` those of
other machines. `lock` keeps two runs apart, `progress` reports how far a run is.
"""
