"""Measures beside a program of the user's own: a loop, a job, a serving engine."""
