"""Texts that a YAML reader must refuse in one sentence: too deep, too long, or with unsupported
tags."""

from mfulab.core.yaml_text import DEEPEST, LONGEST, MOST_VALUES

BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{after}: &{after} [{', '.join([f'*{before}'] * 10)}]\n"
    for before, after in zip("abcdef", "bcdefg", strict=True)
)
CHAIN = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}]\n" for n in range(1, 2 * DEEPEST))
BAD_YAML = {
    "brackets": "[" * 20_000,
    "dashes": "- " * 200_000,  # PyYAML's loader in C ends the process with them
    "closed brackets": f"a: {'[' * DEEPEST}{']' * DEEPEST}",
    "aliases": BOMB,
    "aliases of one another": CHAIN,
    "a text that holds itself": "a: &a [*a]",
    "a mapping that holds itself": "&a {b: *a}",
    "digits": "a: " + "9" * 5000,
    "a date that is none": "a: 2020-99-99",
    "a tag of another value": "a: !!bool x",
    "a tag of no value": "a: !!int ''",
    "a tag of a date": "a: !!timestamp x",
    "code": "a: !!python/object/apply:os.system [touch owned]",
    "a list as a key": "? [a]\n: 1",
    "a zero byte": "a: \0",
    "too long": "a: " + "x" * LONGEST,
    "too many": "a: [" + "1, " * (2 * MOST_VALUES) + "]",
}
