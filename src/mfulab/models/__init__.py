"""Models to profile: builds them from their configs, with inputs and losses."""
