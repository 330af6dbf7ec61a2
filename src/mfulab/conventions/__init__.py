"""What an MFU means: the conventions of the field, the number that each gives, and what a device could reach."""
