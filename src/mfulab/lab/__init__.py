"""The pipeline: plan, runs, tables, figures and page of a sweep."""
