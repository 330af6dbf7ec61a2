"""The measurements, each a module with `measure(config, folder)`."""
