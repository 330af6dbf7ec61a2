"""What this device is, what it can do at best, and what it was doing."""
