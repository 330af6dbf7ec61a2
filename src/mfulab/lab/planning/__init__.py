"""From an experiment to the list of runs, without importing torch or touching a device."""
