"""What figures share: style, labels, ticks, fonts."""
