"""Shared helpers of the tests: miniature heads, models and stores, servers, failing engines."""
