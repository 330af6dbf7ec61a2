"""Identity of a run: the values of its config that differ from the defaults. A new key with a
default changes no run; a changed default changes each run that used it."""

import hashlib
import json

from pydantic import ValidationError

from mfulab.core.json_text import parse_json
from mfulab.measurements.registry import MEASUREMENTS

DIGITS = 12  # of a digest, enough for all runs that will ever be planned


def identity(step: str, text: str) -> str:
    """Digest of the values in a config's text that differ from today's defaults. If today's keys do
    not allow the config, digest of the whole text."""
    try:
        config = MEASUREMENTS[step].config.model_validate(parse_json(text))
    except (ValidationError, ValueError):
        return digest(text)
    differing = config.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return digest(json.dumps([step, differing], sort_keys=True))


def is_same(step: str, text: str | None, other: str) -> bool:
    """True if two configs of a measurement describe the same run; False if `text` is None."""
    if text is None:
        return False
    return text == other or identity(step, text) == identity(step, other)


def digest(text: str) -> str:
    """First `DIGITS` hex digits of a text's SHA-256."""
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]
