"""The job view: results looked at and judged in the browser."""
