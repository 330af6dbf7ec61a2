"""Stands in for torchvision where public scripts only want images: they are noise, nothing is
downloaded."""

from . import datasets, transforms, utils

__all__ = ["datasets", "transforms", "utils"]
