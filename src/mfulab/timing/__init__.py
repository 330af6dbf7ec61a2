"""Windows, repetitions, clocks and statistics of timed work."""
