"""The sentence of an error."""

import pytest

from mfulab.core.errors import ConfigurationError
from mfulab.core.said import Said, SaidError, as_told, said_by

LINES = "yaml: line 3\n    key: value\n        ^"
ONE_LINE = as_told("yaml: line 3 key: value ^")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError(LINES), ONE_LINE),
        (ConfigurationError(LINES), ONE_LINE),
        (SaidError(Said("a_link")), Said("a_link")),
    ],
)
def test_a_message_of_several_lines_is_one_sentence(error, said):
    assert said_by(error) == said
