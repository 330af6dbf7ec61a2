"""Names of replicates, the processes that measure one run. `…,replicate=2` is the second; the first
has the run's own name."""

import re

MOST_REPLICATES = 99
# A file next to a run's config that marks an unplanned run: half of a batch that did not fit.
STANDS_IN = "stands_in"
_NUMBER = re.compile(r",replicate=(\d+)$")
_BATCH = re.compile(r"(?<=batch_size=)\d+")


def numbered(run: str, replicate: int) -> str:
    """Appends `,replicate=N` to a run's name; replicate 1 keeps the plain name."""
    if replicate > 1:
        return f"{run},replicate={replicate}"
    return run


def base_name(run: str) -> str:
    """A run's name without `,replicate=N`.

    >>> base_name("kernel=torch,size=64,replicate=2")
    'kernel=torch,size=64'
    """
    return _NUMBER.sub("", run)


def previous(run: str) -> str | None:
    """Name of the replicate before this one; None for the first.

    >>> previous("size=64,replicate=3"), previous("size=64,replicate=2"), previous("size=64")
    ('size=64,replicate=2', 'size=64', None)
    """
    number = replicate_of(run)
    if number > 1:
        return numbered(base_name(run), number - 1)
    return None


def replicate_of(run: str) -> int:
    """Number of the replicate that a name stands for; 1 if the name has none."""
    match = _NUMBER.search(run)
    if match:
        return int(match[1])
    return 1


def halved(run: str) -> str:
    """A run's name with its batch size halved; unchanged if it has no batch size, or a batch of
    1.

    >>> halved("model=vit,batch_size=9,precision=fp32"), halved("model=vit,batch_size=1")
    ('model=vit,batch_size=4,precision=fp32', 'model=vit,batch_size=1')
    """
    return _BATCH.sub(lambda match: str(max(1, int(match[0]) // 2)), run)


def turn(run: str, seed: int) -> float:
    """Priority in (0, 1) that orders runs: replicate 1 of every run comes first, then replicate 2,
    and so on. Each round is shuffled by `seed`, so that processes of one run lie apart in time."""
    import hashlib

    digest = hashlib.sha256(f"{seed},{run}".encode()).digest()
    random_share = int.from_bytes(digest[:6], "big") / 2**48
    return (1 - (replicate_of(run) - random_share) / (MOST_REPLICATES + 1)) / 2
