"""What several jobs share.

Scans that are found: `discovery` (the front), `cases`, `datasets`, `folders`; label maps and images
to compare: `scanfiles`, `stored`. Of each run: `config`, `lock`, `process`, `progress`, `naming`,
`exits`. What people said of results: `ratings`.
"""
