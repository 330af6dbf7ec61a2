"""The error that says: this cannot be done here, for this reason."""


class UnsupportedError(Exception):
    """This run cannot be done on this device; its message says why and becomes the row's."""
