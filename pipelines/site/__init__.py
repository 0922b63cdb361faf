"""The site: a static page that segments in the browser."""
