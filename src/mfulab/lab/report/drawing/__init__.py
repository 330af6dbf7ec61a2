"""Style, labels, ticks and fonts that figures share."""
