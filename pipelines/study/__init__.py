"""Finding scans and label maps: folders, BIDS datasets, SUBJECTS_DIRs, lists, stores.

`naming` says what results are called, `people` what is understood of tables of persons, `ratings`
what people said of results.
"""
