"""The jobs about data: download, prepare, split, report, show, phantom."""
