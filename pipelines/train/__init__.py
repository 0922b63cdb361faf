"""The job train: a recipe becomes a model."""
