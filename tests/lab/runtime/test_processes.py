import errno
import os
import subprocess
import sys

import pytest

from mfulab.lab.runtime import processes


@pytest.mark.parametrize("refusal", [None, errno.ENOSYS, errno.EPERM])
def test_a_process_is_alive_until_it_has_ended(monkeypatch, refusal):
    """Also where the system has no file descriptors of processes to give."""
    if refusal is not None:

        def refuse(process):
            raise OSError(refusal, os.strerror(refusal))

        monkeypatch.setattr(os, "pidfd_open", refuse, raising=False)
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert processes.is_alive(child.pid)
    child.communicate(b"\n")
    assert not processes.is_alive(child.pid)


def test_another_error_is_not_taken_for_an_answer(monkeypatch):
    def refuse(process):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "pidfd_open", refuse, raising=False)
    with pytest.raises(OSError, match="open files"):
        processes.is_alive(os.getpid())
