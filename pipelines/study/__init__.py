"""Scans, label maps and results of a study: discovery, names, ledgers, pairing, participants.

`naming` defines the names of results, `participants` reads participants tables, and `ratings` holds
the verdicts of raters on results.
"""
