"""The page: one HTML file from tables and figures."""
