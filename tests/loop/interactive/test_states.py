"""States of a loop's thread: the table of transitions, and what the documentation shows of it."""

import re

from support.workflow_copy import ROOT

from mfulab.loop.interactive.states import TRANSITIONS, Event, LoopState, LoopThread


def test_the_diagram_shows_every_transition_of_the_table_and_no_other():
    text = (ROOT / "docs/loops.md").read_text(encoding="utf-8")
    diagram = text.partition("stateDiagram-v2")[2].partition("```")[0]
    arrows = re.findall(r"^ +(\S+) --> (\w+)", diagram, re.MULTILINE)
    expected = [("[*]", LoopThread().state.name.lower())]
    for (before, _), after in TRANSITIONS.items():
        expected.append((before.name.lower(), after.name.lower()))
    assert sorted(arrows) == sorted(expected)


def test_the_table_names_every_state_and_every_event():
    assert {state for state, _ in TRANSITIONS} == set(LoopState)
    assert set(TRANSITIONS.values()) == set(LoopState)
    assert {event for _, event in TRANSITIONS} == set(Event)


def test_an_event_outside_the_table_is_part_of_the_running_pass():
    for state in LoopState:
        for event in Event:
            thread = LoopThread()
            thread.state = state
            is_moved = thread.move(event)
            assert is_moved is ((state, event) in TRANSITIONS)
            assert thread.state is TRANSITIONS.get((state, event), state)
