"""From rows to tables, figures and one page."""
