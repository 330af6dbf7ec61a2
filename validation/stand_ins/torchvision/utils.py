"""Writers that write nothing."""


def save_image(*_: object, **__: object) -> None:
    """Saves nothing."""


def make_grid(images: object, **__: object) -> object:
    """The images themselves."""
    return images
