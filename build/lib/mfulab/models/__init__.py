"""What is profiled: building a model from its config, its inputs and its loss."""
