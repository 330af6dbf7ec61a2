"""Implementations of matmul, one file each."""
