"""The measurements, each a folder with `measure(config, folder)` in its measure.py."""
