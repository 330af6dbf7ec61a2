"""Three lines at the end of every output on one run: what was found, why, and what to try, with the
time at stake and the config that tries it."""

from collections.abc import Mapping
from dataclasses import dataclass

from mfulab.core.formats import FORMATS
from mfulab.core.json_text import parse_json
from mfulab.core.language import Texts, verdicts
from mfulab.core.language.intervals import ends_in_words
from mfulab.core.language.quantities import percent, quantity, significant
from mfulab.device.vendors import kinds
from mfulab.mfu import account
from mfulab.mfu.causes import BY_BATCH, BY_KEY, Cause
from mfulab.mfu.models import names
from mfulab.mfu.step import Cell, Known, number

LEAST_UNCOUNTED = 0.5  # % of the matmuls' time: less is not mentioned
LEAST = 0.05  # percent: a smaller MFU is shown as smaller than this
TIMES = (1, 2, 4)  # batch sizes that are tried, as multiples of a run's own
# No key of a config helps against these: the run is measured again.
AGAIN = ("doubtful_ceiling", "page_faults", "shared", "throttled")
# Advice, in section `why`, for a step read from a trace, if the usual advice is to record one.
OF_TRACES = {
    "no_mfu": "give_peak_or_model",
    "busy_not_useful": "see_operators",
    "not_explained": "see_operators",
}
# By optimiser: the line of a user's loop that fuses its update. A compiled model leaves it as it is.
FUSED = {
    "adam": "torch.optim.Adam(..., fused=True)",
    "adamw": "torch.optim.AdamW(..., fused=True)",
    "sgd": "torch.optim.SGD(..., fused=True)",
}
NARROW_BYTES = 2  # size of a number from which no narrower format is advised
Row = Mapping[str, Cell]
PHASES_MS = ("forward_ms", "backward_ms", "optimiser_ms", "other_ms")
SETTINGS = ("model", "workload", "precision", "batch_size", "sequence_length")
EAGER = "eager"
PADDING = "padding"  # the sentence on tensor cores that work more than the model needs
# Beginnings of executions that a compiler has already fused: torch's, XLA, and ONNX Runtime.
COMPILED = ("compile", "static_cache_compile", "jax", "tensorflow_function", "onnxruntime")


@dataclass(frozen=True)
class ThreeLines:
    """Sentences on one run; one with nothing to say is empty."""

    finding: str
    because: str
    advice: str
    code: str = ""  # what a loop's user writes to try the advice
    is_elsewhere: bool = False  # the run is another machine's

    def worded(self, language: str = "en") -> list[str]:
        """Lines that have something to say, each with its label."""
        text = Texts(language, "lines")
        lines = []
        if self.finding:
            lines = [self.finding]
        if self.because:
            lines.append(text("because", reason=self.because))
        if self.advice:
            key = "try_there" if self.is_elsewhere else "try"
            lines.append(text(key, advice=self.advice))
        if self.code:
            lines.append(text("code", code=self.code))
        return lines


def three_lines(
    row: Row,
    name: str,
    device: str,
    language: str = "en",
    *,
    is_read: bool = False,
    is_loop: bool = False,
    shorter_helps: bool = True,
) -> ThreeLines:
    """Lines on a profiled step: `name` is its run, `device` the device that it kept busy. `is_read`
    is True for a step read from a trace, `is_loop` for one of a user's loop; `shorter_helps` as in
    `otherwise`."""
    return ThreeLines(
        finding=finding(row, name, device, language),
        because=verdicts.columns(row, language=language)["verdict_reason"],
        advice=advice(row, language, is_read, shorter_helps),
        code=in_code(row) if is_loop else "",
    )


def finding(row: Row, name: str, device: str, language: str = "en") -> str:
    """Sentence on the share of time that a run kept its device busy, and the share of the device's
    arithmetic that it used. If neither is known, on its time; empty without that."""
    text = Texts(language, "lines")
    busy = number(row.get("utilization_percent"))
    if busy is None:
        busy = number(row.get("kernel_busy_percent"))
    used = used_share(row, language)
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
        return text("took", time=step_time(row, language), **values)
    return ""


def used_share(row: Row, language: str = "en") -> str:
    """MFU of a row in words, with its interval if that is wide; empty without MFU."""
    share = number(row.get("mfu_percent"))
    if share is None:
        return ""
    ends = ends_in_words(share, *_ends_of_share(row, share), _with_sign, language)
    return at_least(row, f"{_with_sign(share)}{ends}")


def _ends_of_share(row: Row, share: float) -> tuple[Known, Known]:
    """Ends of the interval of a row's MFU, by that of its time if the row has no other; None if
    unknown."""
    low, high = number(row.get("mfu_ci_low_percent")), number(row.get("mfu_ci_high_percent"))
    if low is not None and high is not None:
        return low, high
    shortest, longest = number(row.get("time_ci_low_s")), number(row.get("time_ci_high_s"))
    time_s = number(row.get("time_s"))
    if not (time_s and shortest and longest):
        return None, None
    return share * time_s / longest, share * time_s / shortest


def _with_sign(mfu_percent: float) -> str:
    return f"{share_of(mfu_percent)} %"


def step_time(row: Row, language: str = "en") -> str:
    """Time of a row in words, with its interval if that is wide; a dash without a time."""
    time_s = number(row.get("time_s"))
    return f"{quantity(time_s, 's')}{_ends_of_time(row, language)}"


def _ends_of_time(row: Row, language: str) -> str:
    """Ends of the interval of a row's time; empty if it is narrow or unknown."""
    time_s = number(row.get("time_s"))
    if time_s is None:
        return ""
    low, high = number(row.get("time_ci_low_s")), number(row.get("time_ci_high_s"))
    return ends_in_words(time_s, low, high, _rounded_time, language)


def _rounded_time(time_s: float) -> str:
    return quantity(time_s, "s", 2)


def is_part(row: Row) -> bool:
    """True if the FLOPs of a row cover only a part of its matmuls."""
    return (number(row.get("uncounted_percent")) or 0) >= LEAST_UNCOUNTED


def at_least(row: Row, share: str) -> str:
    """Formats a share of the peak, as a lower bound if the FLOPs cover only a part of the
    matmuls."""
    if is_part(row):
        return f"≥ {share}"
    return share


def device_of(row: Row) -> str:
    """`CPU` or `GPU`: the kind of device that a row was measured on. A trace names its device; one
    of a CPU has no kernels."""
    device = str(row.get("device") or "")
    if device.startswith("cpu"):
        return "CPU"
    kind, _, _ = device.partition(":")
    if kind in kinds() or number(row.get("kernel_busy_percent")) is not None:
        return "GPU"
    return "CPU"


def share_of(mfu_percent: float) -> str:
    """Formats MFU in percent."""
    if mfu_percent < LEAST:
        return f"< {LEAST:g}"
    return percent(mfu_percent)


def advice(
    row: Row, language: str = "en", is_read: bool = False, shorter_helps: bool = True
) -> str:
    """Advice for a run's verdict: the first remedy, the time at stake, and other remedies. For a
    synthetic load, says that it is one."""
    remedy = first_remedy(row, language, is_read)
    if not remedy or not can_help(row):
        return remedy
    others = ""
    if not (is_read and row.get("verdict") in OF_TRACES):
        remedy = f"{remedy} {most_saved(row, language)}".strip()
        others = otherwise(row, language, shorter_helps)
    return f"{remedy} {others}".strip()


def first_remedy(row: Row, language: str = "en", is_read: bool = False) -> str:
    """The remedy that `tried_config` measures; specific to the side that the row's sentence names,
    if it names one. Empty without a verdict."""
    text = Texts(language, "lines")
    cause = str(row.get("verdict") or "")
    if cause not in BY_KEY:
        return ""
    if not can_help(row):
        return text("by_design")
    if is_read and cause in OF_TRACES:
        return text.within("why")(OF_TRACES[cause])
    padded = _side_to_pad(row)
    if padded:
        return text("pad", **padded)
    if is_slow_update(row):
        return text.within("advice_operators")(_kind_of_update(row))
    compiled = text.within("advice_compiled")
    if is_compiled(row) and compiled.has(cause):
        return compiled(cause)
    return text.within("advice")(cause)


def otherwise(row: Row, language: str = "en", shorter_helps: bool = True) -> str:
    """Sentence on the remedies beside the first, as `other_remedies` has them; empty if there are
    none."""
    remedies = other_remedies(row, language, shorter_helps)
    if not remedies:
        return ""
    return Texts(language, "lines")("otherwise", others=remedies)


def other_remedies(row: Row, language: str = "en", shorter_helps: bool = True) -> str:
    """Remedies beside the first; empty if there are none. `shorter_helps` is False if the device
    gains nothing from a shorter number format."""
    text = Texts(language, "lines")
    cause = str(row.get("verdict") or "")
    if cause not in BY_KEY or not can_help(row):
        return ""
    # A whole model seldom suits a format of one byte; that is advised to a compute-bound one only.
    is_shorter = shorter_helps and (cause == "compute_bound" or not is_narrow(row))
    for section, key in _others(row, cause):
        words = text.within(section)
        if words.has(key):
            return words(key, shorter=int(is_shorter))
    return ""


def _others(row: Row, cause: str) -> list[tuple[str, str]]:
    """Sections and keys of the other remedies, the most specific first."""
    usual = [("otherwise", cause)]
    if is_compiled(row):
        return [("otherwise_compiled", cause), *usual]
    if is_slow_update(row):
        return [("otherwise_operators", _kind_of_update(row))]
    kind = kind_of_operator(row)
    if kind == "update":  # which is fused already
        kind = "others"
    if cause == "other_operators" and kind:
        return [("otherwise_operators", kind)]
    return usual


def in_code(row: Row) -> str:
    """Code that tries the first remedy in a user's loop; empty if there is none of one line."""
    cause = BY_KEY.get(str(row.get("verdict") or ""))
    if cause is None or not can_help(row):
        return ""
    if is_slow_update(row):
        return FUSED.get(str(row.get("optimizer") or ""), "")
    if is_compiled(row) and "torch.compile" in cause.code:
        return ""
    return cause.code


def _side_to_pad(row: Row) -> Mapping[str, float]:
    """Numbers of the matmul with a side to pad if that is the row's verdict; empty if not."""
    if row.get("verdict") == "shape" and row.get("verdict_reason") == "misaligned":
        return verdicts.padded_side(row)
    return {}


def kind_of_operator(row: Row) -> str:
    """Kind of the operator that a row's sentence names: a key of section `otherwise_operators`.
    Empty if it names none."""
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


def is_slow_update(row: Row) -> bool:
    """True if a row's sentence names an operator of the optimiser's update, which is not fused."""
    name, _ = verdicts.longest_operator(row)
    is_fused = "_fused" in name or str(row.get("workload") or "").endswith("_fused")
    is_cause = row.get("verdict") == "other_operators"
    return is_cause and not is_fused and kind_of_operator(row) == "update"


def _kind_of_update(row: Row) -> str:
    """Key of the remedy for a slow update: `update_of_zeros` if exact zeros slow it down."""
    if row.get("verdict_reason") == "other_operators_zeros":
        return "update_of_zeros"
    return "update"


def is_narrow(row: Row) -> bool:
    """True if a step's numbers take so few bytes that no narrower format suits a whole model."""
    form = FORMATS.get(str(row.get("effective_precision") or row.get("precision") or ""))
    return form is not None and form.bytes <= NARROW_BYTES


def is_compiled(row: Row) -> bool:
    """True if a compiler made a step's kernels, so that compiling is no advice."""
    return str(row.get("execution") or EAGER).startswith(COMPILED)


def can_help(row: Row) -> bool:
    """False for a load that spins by design, for which no advice helps."""
    return str(row.get("model") or "") != "spinning"


def most_saved(row: Row, language: str = "en") -> str:
    """Sentence on the time of a step that the verdict's parts take. It is of a sample if the remedy
    is a larger batch. Empty if no budget shows it, or if the remedy is another number format, which
    shortens other parts too."""
    cause = BY_KEY[str(row["verdict"])]
    if cause.key == "wrong_precision":
        return ""
    lost = account.read(row).loss(str(row.get("verdict") or ""))
    time_s = number(row.get("time_s"))
    if lost is None or time_s is None:
        return ""
    text = Texts(language, "lines")
    if "batch_size" in _remedy_keys(row, cause):
        # A larger batch makes a step longer.
        return text("saves_by_batch", share=percent(100 * lost.ms / (1e3 * time_s)))
    unit, of_a_second = _unit_of(time_s)
    step = of_a_second * time_s
    part = of_a_second * _saved_ms(row, lost.ms) / 1e3
    shown = significant(part), significant(step)
    if shown[0] == shown[1]:  # shows that the part is nearly, but not all of, the step
        shown = significant(part, 4), significant(step, 4)
    ends = _ends_of_time(row, language)
    saved = text("saves", part=shown[0], step=shown[1], unit=unit, ends=ends)
    return f"{saved} {_slowest_module(row, text)}".strip()


def _slowest_module(row: Row, text: Texts) -> str:
    """Sentence on the module whose matmuls lose most time to their ceiling, if the row's sentence is
    on padding that it does not locate; empty without such a module."""
    modules = parse_json(str(row.get("module_times") or "[]"))
    if row.get("verdict_reason") != PADDING or not modules:
        return ""
    lost_ms = {}
    for place, module in enumerate(modules):
        inside = modules[place + 1 : place + 2]
        is_leaf = not inside or inside[0]["depth"] <= module["depth"]
        if is_leaf and module.get("mfu_percent"):
            lost_ms[place] = module["ms"] * (1 - module["mfu_percent"] / 100)
    if not lost_ms:
        return ""
    slowest = modules[max(lost_ms, key=lost_ms.__getitem__)]
    return text("slowest", module=slowest)


def _unit_of(time_s: float) -> tuple[str, float]:
    """Unit in which a step is told, and how many of it are a second."""
    if time_s < 1e-3:
        return "µs", 1e6
    if time_s < 1:
        return "ms", 1e3
    return "s", 1.0


def _saved_ms(row: Row, lost_ms: float) -> float:
    """Milliseconds of a step that the first remedy can save, of those that the cause costs."""
    padded = _side_to_pad(row)
    if padded:
        return min(lost_ms, padded["ms"] - padded["best_ms"])
    if is_slow_update(row):
        return min(lost_ms, _update_ms(row, lost_ms))
    return min(lost_ms, _padding_ms(row, lost_ms))


def _padding_ms(row: Row, unknown: float) -> float:
    """Milliseconds of a step that tensor cores work beyond what the model needs, if its sentence
    names that; `unknown` otherwise."""
    if row.get("verdict_reason") != PADDING:
        return unknown
    numbers = verdicts.numbers_of(row)
    expected, counted = number(numbers.get("expected")), number(numbers.get("counted"))
    time_s = number(row.get("time_s"))
    if expected is None or counted is None or time_s is None:
        return unknown
    return 10 * time_s * (expected - counted)


def _update_ms(row: Row, unknown: float) -> float:
    """Milliseconds of a step that the optimiser takes, by its share of the phases, which are timed
    in steps of their own; `unknown` without phases."""
    update_ms = number(row.get("optimiser_ms"))
    time_s = number(row.get("time_s"))
    phases_ms = sum(number(row.get(name)) or 0.0 for name in PHASES_MS)
    if not update_ms or time_s is None:
        return unknown
    return 1e3 * time_s * update_ms / phases_ms


def tried_config(row: Row) -> str:
    """Config that measures the advice on the run itself, such as `model=resnet18
    execution=eager,compile`; empty if there is none."""
    cause = BY_KEY.get(str(row.get("verdict") or ""))
    if cause is None or cause.key == "no_mfu" or not can_help(row):
        return ""
    remedy = _remedy_keys(row, cause)
    is_measured_again = cause.key in AGAIN
    if "experiment" in remedy and not is_measured_again:
        return cause.remedy
    is_left = is_compiled(row) and not is_slow_update(row)
    if cause.key == "other_operators" and is_left:  # a batch changes nothing of these
        return ""
    if row.get("model") not in names():
        return ""
    settings = _settings(row)
    if is_measured_again:
        return _as_arguments(settings)
    return _as_arguments(_with_remedy(settings, remedy))


def tried_axis(row: Row) -> tuple[str, list[str]]:
    """The key that `tried_config` sweeps, with its values; empty if it sweeps none, or several."""
    swept = {}
    for part in tried_config(row).split(" "):
        key, _, values = part.partition("=")
        if "," in values:
            swept[key] = values.split(",")
    if len(swept) != 1:
        return "", []
    return next(iter(swept.items()))


def _remedy_keys(row: Row, cause: Cause) -> dict[str, str]:
    """Keys of a config that try a cause's remedy; larger batches where the remedy is to compile and
    the step is compiled already."""
    if is_slow_update(row):
        return _fused_update(row)
    remedy = dict(part.partition("=")[::2] for part in cause.remedy.split(" "))
    if "execution" in remedy and is_compiled(row):
        key, _, values = BY_BATCH.partition("=")
        return {key: values}
    return remedy


def _fused_update(row: Row) -> dict[str, str]:
    """Keys that sweep a fused update: the workload that has one, else its own key."""
    workload = str(row.get("workload") or "")
    if workload == "training":
        return {"workload": "training,training_adam_fused"}
    if workload == "training_sgd":
        return {"workload": "training_sgd,training_sgd_fused"}
    return {"workload.optimizer_implementation": "default,fused"}


def _with_remedy(settings: Mapping[str, str], remedy: Mapping[str, str]) -> dict[str, str]:
    """Keys of a run, with those that a remedy changes or sweeps."""
    config = dict(settings)
    workload = remedy.get("workload", "")
    if workload.endswith("_loaded") and not settings["workload"].endswith("_loaded"):
        config["workload"] = workload
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
    if row.get("pruning") not in (None, "", "none"):
        settings["model.pruning"] = str(row["pruning"])
        settings["model.pruned_share"] = f"{number(row.get('pruned_share')) or 0:g}"
    if is_compiled(row):
        settings["execution"] = str(row["execution"])
    return settings


def _as_arguments(keys: Mapping[str, str]) -> str:
    return " ".join(f"{key}={value}" for key, value in keys.items())
