"""Kernels' names: which of them communicate, and which number formats they multiply."""

from pathlib import Path

import pytest
import yaml

from mfulab.tracing.tiles import format_of
from mfulab.tracing.trace import COMMUNICATION, COMPUTE, kind_of

NAMES = yaml.safe_load(Path(__file__).with_name("names.yaml").read_text())


@pytest.mark.parametrize("kernel", NAMES["communication"])
def test_collectives_of_engines_and_vendors_are_communication(kernel):
    assert kind_of(kernel) == COMMUNICATION


@pytest.mark.parametrize("kernel", NAMES["computation"])
def test_what_only_reads_like_a_collective_is_computation(kernel):
    assert kind_of(kernel) == COMPUTE


@pytest.mark.parametrize("kernel", NAMES["formats"])
def test_the_operands_format_is_read_from_a_kernels_name(kernel):
    number_format, _ = NAMES["formats"][kernel]
    assert format_of(kernel) == number_format


@pytest.mark.parametrize("kernel", NAMES["unknown"])
def test_a_name_that_tells_no_format_has_none(kernel):
    assert format_of(kernel) is None
