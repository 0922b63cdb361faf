"""How jobs run: processes that work on many items, clusters, locks, progress.

`process` is one process and the signals that stop it, `pool` many of them, `cluster` those of other
machines. `lock` keeps two runs apart, `progress` shows how far one is.
"""
