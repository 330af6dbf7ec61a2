"""MFU of a step: its account, budget and verdict, the field's conventions, and the best that a
device could reach."""
