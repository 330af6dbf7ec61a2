"""Three lines that end every output, of one run: what was found, because of what, and what to try,
with the most that it can save and the config that tries it."""

from collections.abc import Mapping
from dataclasses import dataclass

from mfulab.core.formats import FORMATS
from mfulab.core.language import Texts, verdicts
from mfulab.core.language.quantities import percent, quantity, significant
from mfulab.core.said import packed
from mfulab.device.vendors import kinds
from mfulab.mfu import account
from mfulab.mfu.account import Judged
from mfulab.mfu.causes import BY_BATCH, BY_KEY
from mfulab.mfu.models import names
from mfulab.mfu.step import Cell, number

LEAST_UNCOUNTED = 0.5  # % of the matmuls' time: less is none in what is said
LEAST = 0.05  # percent: a smaller MFU is no longer told apart
TIMES = (1, 2, 4)  # a run's batch size, and how much larger ones are tried
# What is done about these is no key of a config: the run is measured again.
AGAIN = ("doubtful_ceiling", "page_faults", "shared", "throttled")
# What to try, in section `why`, for a step that was read from a trace, where it is no advice to
# record one.
OF_TRACES = {
    "no_mfu": "give_peak_or_model",
    "busy_not_useful": "see_operators",
    "not_explained": "see_operators",
}
NARROW_BYTES = 2  # of a number
Row = Mapping[str, Cell]
SETTINGS = ("model", "workload", "precision", "batch_size", "sequence_length")


@dataclass(frozen=True)
class ThreeLines:
    """Sentences about one run; an empty one has nothing to say."""

    finding: str
    because: str
    advice: str

    def worded(self, language: str = "en") -> list[str]:
        """The lines that have something to say, each behind its word."""
        text = Texts(language, "lines")
        lines = []
        if self.finding:
            lines = [self.finding]
        if self.because:
            lines.append(text("because", reason=self.because))
        if self.advice:
            lines.append(text("try", advice=self.advice))
        return lines


def three_lines(
    row: Row, name: str, device: str, language: str = "en", *, is_read: bool = False
) -> ThreeLines:
    """The lines on a profiled step: `name` is its run, `device` what it kept busy; `is_read` of a
    step from a trace."""
    return ThreeLines(
        finding=finding(row, name, device, language),
        because=verdicts.columns(row, language=language)["verdict_reason"],
        advice=advice(row, language, is_read),
    )


def finding(row: Row, name: str, device: str, language: str = "en") -> str:
    """Share of the time that a run kept its device busy, and what share of the device's arithmetic it used; its time
    where neither is known."""
    text = Texts(language, "lines")
    busy = number(row.get("utilization_percent"))
    if busy is None:
        busy = number(row.get("kernel_busy_percent"))
    share = number(row.get("mfu_percent"))
    used = "" if share is None else at_least(row, share_of(share))
    values = {"name": name, "device": device, "busy": busy, "mfu": used}
    if busy is not None:
        key = "busy"
        if used:
            key = "busy_and_used"
        return text(key, **values)
    if used:
        return text("used", **values)
    time_s = number(row.get("time_s"))
    if time_s:
        return text("took", time=quantity(time_s, "s"), **values)
    return ""


def is_part(row: Row) -> bool:
    """Says whether the FLOPs of a row are those of a part of its matmuls."""
    return (number(row.get("uncounted_percent")) or 0) >= LEAST_UNCOUNTED


def at_least(row: Row, share: str) -> str:
    """A share of the peak in words; of a part of the FLOPs the whole is at least that."""
    if is_part(row):
        return f"≥ {share}"
    return share


def device_of(row: Row) -> str:
    """`CPU` or `GPU`: what a row was measured on. A trace names its device; one of a CPU has no
    kernels."""
    device = str(row.get("device") or "")
    if device.startswith("cpu"):
        return "CPU"
    kind, _, _ = device.partition(":")
    if kind in kinds() or number(row.get("kernel_busy_percent")) is not None:
        return "GPU"
    return "CPU"


def share_of(mfu_percent: float) -> str:
    """MFU in percent, in words."""
    if mfu_percent < LEAST:
        return f"< {LEAST:g}"
    return percent(mfu_percent)


def advice(row: Row, language: str = "en", is_read: bool = False) -> str:
    """Advice for a run's verdict, with the most that it can save; of a synthetic load that it
    is one."""
    text = Texts(language, "lines")
    cause = str(row.get("verdict") or "")
    if cause not in BY_KEY:
        return ""
    if not can_help(row):
        return text("by_design")
    if is_read and cause in OF_TRACES:
        return text.within("why")(OF_TRACES[cause])
    return f"{_remedy(row, cause, text)} {most_saved(row, language)}".strip()


def _remedy(row: Row, cause: str, text: Texts) -> str:
    """Advice against a cause: of the operator or the side that its sentence names, where one is
    known."""
    usual = text.within("advice")
    narrow = text.within("advice_narrow")
    padded = _side_to_pad(row)
    if padded:
        return usual("pad", **padded)
    kind = kind_of_operator(row)
    if cause == "other_operators" and kind:
        return text.within("advice_operators")(kind, narrow=int(is_narrow(row)))
    if is_narrow(row) and narrow.has(cause):
        return narrow(cause)
    return usual(cause)


def _side_to_pad(row: Row) -> Mapping[str, float]:
    """Numbers of the matmul with a side to pad, where that is a row's verdict; empty where not."""
    if row.get("verdict") == "shape" and row.get("verdict_reason") == "misaligned":
        return verdicts.padded_side(row)
    return {}


def kind_of_operator(row: Row) -> str:
    """Kind of the operator that a row's sentence names, as a key of section `advice_operators`; empty
    where it names none."""
    name, share = verdicts.longest_operator(row)
    if not name:
        return ""
    if verdicts.is_update(name, share, row):
        return "update"
    if "softmax" in name or "attention" in name:
        return "attention"
    if "batch_norm" in name and row.get("mode") == "inference":
        return "folded"
    return "others"


def is_narrow(row: Row) -> bool:
    """Says whether a step's numbers take so few bytes that no narrower format suits a whole model."""
    form = FORMATS.get(str(row.get("effective_precision") or row.get("precision") or ""))
    return form is not None and form.bytes <= NARROW_BYTES


def can_help(row: Row) -> bool:
    """False for a load that spins by design, for which no advice helps."""
    return str(row.get("model") or "") != "spinning"


def most_saved(row: Row, language: str = "en") -> str:
    """Sentence on the time that the verdict's parts take of a step: no remedy can save more. Empty
    where no budget tells it."""
    lost = account.read(row).loss(str(row.get("verdict") or ""))
    time_s = number(row.get("time_s"))
    if lost is None or time_s is None:
        return ""
    part, step, unit = lost.ms, 1e3 * time_s, "ms"
    padded = _side_to_pad(row)
    if padded:
        part = min(part, padded["ms"] - padded["best_ms"])
    if step < 1:
        part, step, unit = 1e3 * part, 1e3 * step, "µs"
    words = significant(part), significant(step)
    if words[0] == words[1]:  # a part that is nearly all is no whole step
        words = significant(part, 4), significant(step, 4)
    return Texts(language, "lines")("saves", part=words[0], step=words[1], unit=unit)


def verdict_of(judged: Judged) -> dict[str, str | None]:
    """Columns of a row that hold a verdict, without its flags, which are told apart."""
    numbers = packed(judged.reason.numbers)
    return {
        "verdict": judged.cause,
        "verdict_reason": judged.reason.key,
        "verdict_numbers": numbers,
        "verdict_flags": None,
    }


def tried_config(row: Row) -> str:
    """The config that measures the advice on the run itself, `model=resnet18 execution=eager,compile`;
    empty where none does."""
    cause = BY_KEY.get(str(row.get("verdict") or ""))
    if cause is None or cause.key == "no_mfu" or not can_help(row):
        return ""
    remedy = dict(part.partition("=")[::2] for part in cause.remedy.split(" "))
    is_measured_again = cause.key in AGAIN
    if "experiment" in remedy and not is_measured_again:
        return cause.remedy
    if row.get("model") not in names():
        return ""
    settings = _settings(row)
    if is_measured_again:
        return _words(settings)
    return _words(_with_remedy(settings, remedy))


def _with_remedy(settings: Mapping[str, str], remedy: Mapping[str, str]) -> dict[str, str]:
    """Keys of a run with what a remedy changes or sweeps of them."""
    config = dict(settings)
    if remedy.get("workload", "").endswith("_loaded") and not settings["workload"].endswith(
        "_loaded"
    ):
        config["workload"] = remedy["workload"]
    for key, value in remedy.items():
        if key == "batch_size" and value == BY_BATCH.partition("=")[2] and key in settings:
            config[key] = ",".join(str(times * int(settings[key])) for times in TIMES)
        elif key not in config or "," in value:
            config[key] = value
    return config


def _settings(row: Row) -> dict[str, str]:
    """Keys of a run's config that a row holds."""
    settings = {}
    for key in SETTINGS:
        value = row.get(key)
        amount = number(value)
        if amount is not None:
            if amount > 0:
                settings[key] = f"{amount:.0f}"
        elif isinstance(value, str) and value:
            settings[key] = value
    return settings


def _words(keys: Mapping[str, str]) -> str:
    return " ".join(f"{key}={value}" for key, value in keys.items())
