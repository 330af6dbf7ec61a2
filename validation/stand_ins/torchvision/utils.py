"""Image output that writes nothing."""


def save_image(*_: object, **__: object) -> None:
    """Does nothing."""


def make_grid(images: object, **__: object) -> object:
    """Returns the images unchanged."""
    return images
