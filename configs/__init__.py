"""Recipes in YAML and label tables in TSV, installed with the package."""
