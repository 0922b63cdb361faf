"""The jobs about models: bundle, fit and export."""
