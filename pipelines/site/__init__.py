"""Static page that segments in the browser."""
