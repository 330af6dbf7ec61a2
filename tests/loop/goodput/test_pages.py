"""A page for Prometheus whose series a stranger made: read in steps that grow as the page does."""

import sys

import pytest
from support.slow import few

from mfulab.core.errors import ConfigurationError
from mfulab.loop.goodput import pages
from mfulab.loop.goodput.pages import MOST_SHAPES, parse

RUNNING = "vllm:num_requests_running"


def lines(count, labels):
    """`count` series of one metric; `labels` gives those of each."""
    return "".join(f"{RUNNING}{{{labels(place)}}} 1\n" for place in range(count))


def shapes(place):
    """Labels of one of as many sets of names as are read, each a part of the next."""
    return ",".join(f'l{name}="{place}"' for name in range(place % 60))


HOSTILE = {
    "engines": lambda place: f'engine="{place}"',
    "engines and their replicas": lambda place: (
        f'engine="{place // 2}"' + f',replica="{place}"' * (place % 2)
    ),
    "parts of a total": lambda place: f'reason="{place}"' * (place > 0),
    "ranks": lambda place: f'tp_rank="{place}"',
    "dp ranks": lambda place: f'dp_rank="{place}",tp_rank="{place}"',
    "pairs in each other": lambda place: (
        f'a="{place // 3}"' + f',b="{place % 3}"' * (place % 3 > 0)
    ),
    "names in each other": shapes,
    "models": lambda place: f'model_name="{"m" * (place % 50)}{place}"',
}


def steps(text):
    """Lines that the module runs to read a page."""
    count = 0

    def line(frame, event, argument):
        nonlocal count
        count += event == "line"
        return line

    def call(frame, event, argument):
        # a generator's next value is a call too
        nonlocal count
        count += 1
        return line if frame.f_code.co_filename == pages.__file__ else None

    before = sys.gettrace()
    sys.settrace(call)
    try:
        parse(text, "x", 0.0)
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("kind", few(HOSTILE, 4))
def test_twice_the_series_take_twice_the_steps(kind):
    once, twice = (steps(lines(count, HOSTILE[kind])) for count in (240, 480))
    assert once < twice < 2.2 * once


def test_more_sets_of_labels_than_an_engine_has_are_one_sentence():
    text = lines(MOST_SHAPES + 1, lambda place: f'l{place}="1"')
    with pytest.raises(ConfigurationError, match=str(MOST_SHAPES)) as refused:
        parse(text, "x", 0.0)
    assert "\n" not in str(refused.value)
    assert parse(lines(MOST_SHAPES, lambda place: f'l{place}="1"'), "x", 0.0)


def test_a_sum_that_is_not_finite_is_no_value():
    text = f'{RUNNING}{{reason="a"}} 1e308\n{RUNNING}{{reason="b"}} 1e308\n'
    assert "running" not in parse(text, "x", 0.0)[0].values
    assert parse(text.replace("1e308", "1"), "x", 0.0)[0].values["running"] == 2


def test_an_engine_has_the_series_of_its_own_labels_alone():
    """Totals of the page, and of a part of an engine's labels, are another's."""
    text = (
        f"{RUNNING} 60\n"
        f'{RUNNING}{{engine="0"}} 10\n'
        f'{RUNNING}{{engine="0",pod="a"}} 10\n'
        f'{RUNNING}{{engine="1",pod="b"}} 20\n'
        f'{RUNNING}{{engine="1",pod="b",reason="x"}} 15\n'
        f'{RUNNING}{{engine="1",pod="b",reason="y"}} 5\n'
    )
    every = {page.replica: page.values["running"] for page in parse(text, "x", 0.0)}
    assert every == {"": 60, "engine=0 pod=a": 10, "engine=1 pod=b": 20}


def test_a_line_without_end_is_one_sentence_before_it_is_parsed():
    text = f'{RUNNING}{{a="' + '\\"' * 200_000 + '"} 1\n'
    with pytest.raises(ConfigurationError, match="line") as refused:
        parse(text, "x", 0.0)
    assert len(str(refused.value)) < 200
