"""A warm process that has imported the heavy libraries and forks a child for each run; runs work without it too."""
