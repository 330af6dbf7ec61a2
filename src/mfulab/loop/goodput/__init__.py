"""Above the step and beside the server: a job's journal and its ladder, and a serving engine's own
counters."""
