"""Serving by hand, and what holds for any load: everybody is answered, nobody too soon."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_serving import Request, Server, between, latencies, requests

# Two places; a prompt takes 4 s, two together 6; a token takes 1 s, two together 2.
SERVER = Server({1: 4.0, 2: 6.0}, {1: 1.0, 2: 2.0})


@pytest.mark.parametrize("policy", ["static", "continuous"])
def test_a_request_alone_takes_its_prefill_and_its_further_tokens(policy):
    assert latencies(SERVER, [Request(10.0, 3)], policy) == [4 + 2 * 1]
    assert latencies(SERVER, [Request(0.0, 1)], policy) == [4]


def test_a_static_batch_waits_for_its_longest_answer():
    asked = [Request(0.0, 2), Request(0.0, 5), Request(1.0, 1)]
    # Both prompts 6 s, four more steps of two at 2 s: 14. The third starts then and takes its
    # prompt's 4 s.
    assert latencies(SERVER, asked, "static") == [14, 14, 14 + 4 - 1]


def test_continuous_batching_fills_the_place_that_becomes_free():
    asked = [Request(0.0, 2), Request(0.0, 5), Request(1.0, 1)]
    # The first ends after 6 + 2; the third's prompt takes its place until 12, the second then
    # decodes three alone.
    assert latencies(SERVER, asked, "continuous") == [8, 12 - 1, 12 + 3]


def test_times_between_measured_batches_lie_on_a_line_and_prompts_beyond_are_read_in_turn():
    assert between({1: 1.0, 4: 4.0}, 2) == 2.0
    assert (between({2: 5.0}, 1), between({2: 5.0}, 9)) == (5.0, 5.0)
    assert SERVER.prefill(5) == 6 + 6 + 4
    assert SERVER.most_requests_per_s(3) == 2 / (6 + 2 * 2)


@settings(max_examples=30)
@given(st.floats(0.01, 3.0), st.sampled_from(["static", "continuous"]), st.integers(0, 9))
def test_everybody_is_answered_and_nobody_faster_than_alone(rate, policy, seed):
    asked = requests(rate, 40, 8, seed)
    found = latencies(SERVER, asked, policy)
    assert len(found) == len(asked)
    shortest = min(4 + (one.tokens - 1) * 1.0 for one in asked)
    assert min(found) >= shortest - 1e-9
    assert {1 <= one.tokens <= 15 for one in asked} == {True}
