"""Names of replicates: `…,replicate=2` is the second process that measures a run, the first has the
run's own name."""

import re

MOST_REPLICATES = 99
# a file beside the config of a run that no plan has: half of a batch that did not fit
STANDS_IN = "stands_in"
_NUMBER = re.compile(r",replicate=(\d+)$")
_BATCH = re.compile(r"(?<=batch_size=)\d+")


def numbered(run: str, replicate: int) -> str:
    """The name of a run's replicate, counted from 1."""
    if replicate > 1:
        return f"{run},replicate={replicate}"
    return run


def base_name(run: str) -> str:
    """A run's name without the number of its replicate.

    >>> base_name("kernel=torch,size=64,replicate=2")
    'kernel=torch,size=64'
    """
    return _NUMBER.sub("", run)


def previous(run: str) -> str | None:
    """The name of the replicate before this one; None for the first.

    >>> previous("size=64,replicate=3"), previous("size=64,replicate=2"), previous("size=64")
    ('size=64,replicate=2', 'size=64', None)
    """
    number = replicate_of(run)
    if number > 1:
        return numbered(base_name(run), number - 1)
    return None


def replicate_of(run: str) -> int:
    """The number of a run's replicate, 1 of the run itself."""
    match = _NUMBER.search(run)
    if match:
        return int(match[1])
    return 1


def halved(run: str) -> str:
    """A run's name with half its batch; unchanged where there is none to halve.

    >>> halved("model=vit,batch_size=9,precision=fp32"), halved("model=vit,batch_size=1")
    ('model=vit,batch_size=4,precision=fp32', 'model=vit,batch_size=1')
    """
    return _BATCH.sub(lambda match: str(max(1, int(match[0]) // 2)), run)


def turn(run: str, seed: int) -> float:
    """A priority in (0, 1): replicates in rounds, each in an order by the seed, so that a run's
    processes lie apart."""
    import hashlib

    drawn = int.from_bytes(hashlib.sha256(f"{seed},{run}".encode()).digest()[:6], "big") / 2**48
    return (1 - (replicate_of(run) - drawn) / (MOST_REPLICATES + 1)) / 2
