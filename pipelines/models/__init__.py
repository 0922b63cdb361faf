"""The jobs about models: bundle, weights of views, limits of quality, export, import."""
