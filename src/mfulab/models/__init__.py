"""Models to profile: building one from its config, with its inputs and its loss."""
