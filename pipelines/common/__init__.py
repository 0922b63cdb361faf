"""What several jobs share.

Settings and options: `config`, `option`. Of each run: `process`, `lock`, `progress`, `exits`,
`licences`. Where models are: `models`. What people said: of results `ratings`, of their tables what
is `understood`.
"""
