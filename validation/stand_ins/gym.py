"""Older name of gymnasium."""

from gymnasium import *  # noqa: F403 (the older name)
