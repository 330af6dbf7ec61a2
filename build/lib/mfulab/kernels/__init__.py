"""Matmul implementations, one file each."""
