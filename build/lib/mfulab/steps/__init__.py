"""The five measurements, each a module with `measure(config, folder)`."""
