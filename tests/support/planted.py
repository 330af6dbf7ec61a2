"""Objects that may exist in place of a file: a folder, a FIFO, a device, broken links."""

import os

PLANTED = {
    "a folder": lambda path: path.mkdir(),
    "a FIFO": os.mkfifo,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a dangling link": lambda path: path.symlink_to(path.with_name("nowhere")),
    "a circular link": lambda path: path.symlink_to(path),
}
