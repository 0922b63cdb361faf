"""The jobs about data: download, prepare, report on a store, show and export what is in it."""
