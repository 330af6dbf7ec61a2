"""Conventions of MFU in the field, the number that each gives, and the best that a device could
reach."""
