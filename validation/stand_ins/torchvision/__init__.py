"""Replaces torchvision for public scripts that only need images. The images are noise, nothing is
downloaded."""

from . import datasets, transforms, utils

__all__ = ["datasets", "transforms", "utils"]
