"""Identity of a run: a key that is added with a default re-measures nothing, a default that changes
re-measures what used it."""

import pydantic
import pytest
from pydantic import Field

from mfulab.core import groups
from mfulab.core.configs import StepConfig
from mfulab.lab.planning import identity, store
from mfulab.lab.planning.runs import Run, config_text
from mfulab.lab.tables import records

FOLDER = "here/bench_matmul/size=64"


class Inner(groups.Closed):
    """A nested group."""

    depth: int = 1


class Before(StepConfig):
    """A measurement's keys before any change."""

    target: str = Field("torch", alias="_target_")
    size: int = 64
    inner: Inner = Inner()


class InnerMore(Inner):
    """The nested group with a key that was added."""

    added: bool = False


class More(Before):
    """With keys that were added, one of them in the nested group."""

    added: str | None = None
    inner: InnerMore = InnerMore()


class NewGroup(Before):
    """With a group that was added."""

    other: Inner = Inner()


class OtherDefault(Before):
    """With a default that changed."""

    size: int = 128


class InnerOther(Inner):
    """The nested group with a default that changed."""

    depth: int = 2


class OtherInnerDefault(Before):
    """With a default of the nested group that changed."""

    inner: InnerOther = InnerOther()


class Renamed(StepConfig):
    """With a key that has another name."""

    target: str = Field("torch", alias="_target_")
    length: int = 64
    inner: Inner = Inner()


@pytest.fixture
def asks_by(monkeypatch):
    """Lets a measurement have the keys of a model; gives the run that a plan then makes."""

    def of(model: type[StepConfig], **given: object) -> Run:
        measurement = type("Measured", (), {"config": model, "on_device": True})
        monkeypatch.setattr(identity, "MEASUREMENTS", {"bench_matmul": measurement})
        text = config_text(model(**given).model_dump(mode="json", by_alias=True))
        return Run("bench_matmul", "size=64", FOLDER, text)

    return of


def measure(run, results):
    store.write_run(run, results)
    (results / FOLDER / "row.csv").write_text("status,message\nok,\n")


@pytest.mark.parametrize(
    ("model", "given", "is_kept"),
    [
        (Before, {}, True),
        (More, {}, True),
        (NewGroup, {}, True),
        (More, {"added": "x"}, False),
        (More, {"inner": InnerMore(added=True)}, False),
        (NewGroup, {"other": Inner(depth=3)}, False),
        (OtherDefault, {}, False),
        (OtherDefault, {"size": 64}, True),
        (OtherInnerDefault, {}, False),
        (OtherInnerDefault, {"inner": InnerOther(depth=1)}, True),
        (Renamed, {}, False),
    ],
)
def test_a_run_is_kept_while_its_values_are_what_they_were(
    tmp_path, asks_by, model, given, is_kept
):
    measure(asks_by(Before), tmp_path)
    before = (tmp_path / FOLDER / "config.json").read_bytes()
    run = asks_by(model, **given)
    expected = store.State.KEPT if is_kept else store.State.CHANGED
    assert store.state(run, tmp_path) is expected
    store.write_run(run, tmp_path)
    assert (tmp_path / FOLDER / "row.csv").exists() is is_kept
    assert ((tmp_path / FOLDER / "config.json").read_bytes() == before) is is_kept
    digest = run.manifest["config_digest"]
    assert (digest == identity.identity(run.step, before.decode())) is is_kept


def test_a_result_that_was_moved_aside_comes_back_under_a_key_that_was_added(tmp_path, asks_by):
    measure(asks_by(Before), tmp_path)
    measure(asks_by(Before, size=32), tmp_path)
    run = asks_by(More)
    assert store.state(run, tmp_path) is store.State.ARCHIVED
    store.write_run(run, tmp_path)
    assert (tmp_path / FOLDER / "row.csv").exists()


def test_a_config_of_another_digest_than_its_plan_has_changed(tmp_path, asks_by):
    run = asks_by(Before)
    measure(run, tmp_path / "results")
    planned = type("Planned", (), {"step": run.step, "folder": f"results/{FOLDER}"})()
    for digest, is_changed in (
        (None, False),
        (identity.identity(run.step, run.text), False),
        ("0" * 12, True),
    ):
        planned.config_digest = digest
        assert records._changed(tmp_path, planned) is is_changed


def test_a_config_that_the_keys_do_not_allow_is_known_by_its_text():
    with pytest.raises(pydantic.ValidationError):
        Before.model_validate({"of_before": 1})
    for text in ("{", "[" * 1000, '{"of_before": 1}'):
        assert identity.identity("bench_matmul", text) == identity.digest(text)
