"""Changes Snakemake before it reads its command line: --config takes keys with a dot, and caches
do without a home."""

import os
import shlex
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

from snakemake import cli

from mfulab.core.terminal_language import terminal_texts
from mfulab.lab.planning import snakemake_workarounds

Parse: TypeAlias = Callable[[Any], dict[str, Any]]


def take_dotted_keys() -> None:
    """Lets --config take keys with a dot, which Snakemake refuses, as part of `overrides`; and
    numbers as typed."""
    parse: Parse = cli.parse_config

    def parse_dotted(entries: Any) -> dict[str, Any]:
        # called before all else of ours
        snakemake_workarounds.catch_signals(snakemake_workarounds.leave_at_once)
        return config_of(list(entries or ()), parse)

    cli.parse_config = parse_dotted


def config_of(entries: Sequence[str], parse: Parse) -> dict[str, Any]:
    """The config of the entries of --config; those whose keys have a dot become `overrides`. Ends
    with one sentence for an entry that Snakemake shows as a traceback."""
    text = terminal_texts("sweep_log")
    dotted = [entry for entry in entries if "." in entry.partition("=")[0]]
    plain = [entry for entry in entries if entry not in dotted]
    try:
        config = parse(plain)
    except ValueError as error:
        sys.exit(text("give_key_value_as", entries=" ".join(entries), error=error))
    except AssertionError:  # of a word that YAML takes for nothing
        sys.exit(_blank_word(parse, entries))
    for entry in entries:
        key, _, typed = entry.partition("=")
        if isinstance(config.get(key), int | float):
            config[key] = typed  # 123_456 may be a name
    if dotted:
        given = str(config.get("overrides", ""))
        overrides = [given, *map(shlex.quote, dotted)]
        config["overrides"] = " ".join(overrides).strip()
    return config


def _blank_word(parse: Parse, entries: Iterable[str]) -> str:
    """The sentence for the first word of --config whose value is nothing to YAML."""
    text = terminal_texts("sweep_log")
    for entry in entries:
        try:
            parse([entry])
        except AssertionError:
            key, _, _ = entry.partition("=")
            return text("value_blank", name=key)
        except ValueError:
            continue
    return text("give_key_value", entries=" ".join(entries))


def need_no_home() -> None:
    """Puts caches into the project if the home cannot be written, where Snakemake ends with a
    traceback otherwise."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser(), "snakemake")
    with suppress(OSError):
        caches.mkdir(parents=True, exist_ok=True)
    if not os.access(caches, os.W_OK):
        os.environ["XDG_CACHE_HOME"] = str(Path(".snakemake/cache").absolute())
