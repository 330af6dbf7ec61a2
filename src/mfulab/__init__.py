"""mfulab measures how much of a device's arithmetic a model really uses, beside how busy the device says it is."""

__version__ = "0.1.0"
