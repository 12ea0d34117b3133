"""The numbers of the predicted step, with their changes against the pinned design."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

import param

from meshwave.designer.kit.canvas import Canvas, PlainData, widget
from meshwave.designer.state.design_session import COMPUTING_PROBLEM, STOPPED_PROBLEM, Session
from meshwave.engine.document.differences import distinct_titles
from meshwave.engine.predict.prediction import Prediction
from meshwave.engine.runs.run_comparison import ErrorRange
from meshwave.engine.units import (
    duration,
    format_count,
    format_energy,
    format_number,
    percent,
    percent_change,
    quantity,
)

Values = Mapping[str, Any]
Verdict = Literal["better", "worse", "similar", "same"]

NOTHING = "–"
NO_SECONDS = ("unit costs", "Not available with unit costs; select roofline costs.")
NOT_GIVEN = (
    "not in the design",
    "Not available: the Cluster section does not give the price per device-hour or the watts per device, or the costs of "
    "the design are not in seconds.",
)
UNPREDICTED = ("not simulated yet", "The design cannot be simulated yet; see the Problems tab.")
UNCHANGED_WITHIN = 5e-4  # a smaller change would be shown as 0.0%
NEUTRAL_WITHIN = 0.01  # a smaller change is neither better nor worse: it is below the accuracy of the cost models


class StepMetric(NamedTuple):
    """One number of the strip: how it is computed, shown and compared."""

    key: str
    label: str
    help: str
    value: Callable[[Values], float | None]
    """None if the design has no such number."""
    written: Callable[[Values, float], str]
    small: Callable[[Values, float], str]
    better: Literal["less", "more"]
    share: bool = False
    """True for a share, whose change is shown in percentage points instead of percent."""
    is_optional: bool = False
    """True if the strip omits the metric for designs without a value of it."""
    detail: Callable[[Values, float], str] = lambda numbers, value: ""
    """A sentence about the value, shown after the help."""


def strip_tiles(prediction: Prediction | None, pinned: Prediction | None = None) -> list[dict[str, Any]]:
    """Return the tiles of the strip, without the optional metrics for which the design has no value."""
    optional = {metric.key for metric in STEP_METRICS if metric.is_optional}
    return [
        tile for tile in metric_tiles(prediction, pinned) if tile["key"] not in optional or tile["value"] != NOTHING
    ]


def metric_tiles(prediction: Prediction | None, pinned: Prediction | None = None) -> list[dict[str, Any]]:
    """Return a tile per metric as plain data, with the change from a pinned prediction."""
    now = None if prediction is None else prediction.numbers
    before = None if pinned is None or pinned is prediction else pinned.numbers
    return [_tile(metric, now, before) for metric in STEP_METRICS]


def _tile(metric: StepMetric, now: Values | None, before: Values | None) -> dict[str, Any]:
    value = None if now is None else metric.value(now)
    if now is None or value is None:
        reason, explained = UNPREDICTED if now is None else NOT_GIVEN if metric.is_optional else NO_SECONDS
        written, small, help = NOTHING, reason, f"{explained}\n{metric.help}"
    else:
        written, small = metric.written(now, value), metric.small(now, value)
        help = "\n".join(filter(None, (metric.help, metric.detail(now, value))))
    return {
        "key": metric.key,
        "label": metric.label,
        "value": written,
        "small": small,
        "help": help,
        "change": None if now is None or before is None else metric_change(metric, now, before),
        **(_memory_bar(now) if metric.key == "memory" and now is not None else {"bar": None, "wrong": ""}),
    }


def _memory_bar(numbers: Values) -> dict[str, Any]:
    """Return the memory use of the fullest device as a fraction of its capacity, and a warning if it does not fit."""
    used = max(numbers["peak_memory_bytes"]) / numbers["capacity_bytes"]
    return {"bar": min(used, 1.0), "wrong": "" if numbers["fits"] else "does not fit"}


# ---- the change against the pinned design ----


def metric_change(metric: StepMetric, now: Values, before: Values) -> dict[str, str] | None:
    """Return the change of a metric from the pinned design; None if the values cannot be compared."""
    value, old = metric.value(now), metric.value(before)
    if value is None or old is None or (_is_time(metric) and now["unit"] != before["unit"]):
        return None
    amount, size = _describe_difference(metric, value, old)
    verdict: Verdict = "same" if size <= UNCHANGED_WITHIN else "similar"
    if size >= NEUTRAL_WITHIN:
        verdict = "better" if (value < old) == (metric.better == "less") else "worse"
    arrow = "same" if verdict == "same" else ("fall" if value < old else "rise")
    pinned = f"{metric.written(before, old)} of the pinned design {before['name']!r}"
    if verdict == "same":
        return {"arrow": arrow, "verdict": verdict, "text": "", "spoken": f"same as {pinned}"}
    words = "less" if arrow == "fall" else "more"
    spoken = f"{amount.replace('pts', 'percentage points')} {words} than {pinned}: {verdict}"
    return {"arrow": arrow, "verdict": verdict, "text": amount, "spoken": spoken}


def _is_time(metric: StepMetric) -> bool:
    return not metric.share and metric.key != "memory"


def _describe_difference(metric: StepMetric, value: float, old: float) -> tuple[str, float]:
    """Return the text of a difference without its sign, and the difference as a fraction of the old value."""
    if metric.share:
        size = abs(value - old)
        return f"{100 * size:.1f} pts", size
    if not old:
        return (NOTHING, 0.0) if not value else ("was 0", 1.0)
    ratio = value / old
    if ratio >= 10:
        return f"{ratio:.3g} times", ratio
    return percent(abs(ratio - 1)), abs(ratio - 1)


# ---- the metrics ----


def _format_time(numbers: Values, value: float) -> str:
    return duration(value, numbers["unit"])


def _number_in_seconds(key: str) -> Callable[[Values], float | None]:
    return lambda numbers: numbers[key] if numbers["unit"] == "s" else None


def _format_percent(numbers: Values, value: float) -> str:
    return percent(value)


def _format_rate(value: float, unit: str) -> str:
    """Format a rate such as ``1.2 k tokens/s``, with the prefix next to the number."""
    return " ".join(quantity(value, f" {unit}").split())


def _capacity_text(numbers: Values, value: float) -> str:
    held, capacity = numbers["peak_memory_bytes"], quantity(numbers["capacity_bytes"], "B")
    fullest = numbers["meshes"][held.index(max(held))]
    if not numbers["fits"]:  # the tile shows "does not fit" before this text
        return f"in {capacity}, mesh {fullest}"
    return f"of {capacity}, mesh {fullest}"


def _describe_exposed(numbers: Values, value: float) -> str:
    """Return the communication time inside blocks; if it is zero, the share of the exposed time in the iteration."""
    makespan, inside = numbers["makespan_s"], numbers["mean_inside_communication_s"]
    if inside:
        return f"+ {_format_time(numbers, inside)} inside blocks"
    return f"{_format_percent(numbers, value / makespan)} of the iteration" if makespan else ""


def _waiting_text(numbers: Values, value: float) -> str:
    makespan, inside = numbers["makespan_s"], numbers["mean_inside_communication_s"]
    if not inside:
        return ""
    exposed, within = (_format_percent(numbers, each / makespan) for each in (value, inside))
    return f"Exposed communication is {exposed} of this iteration; communication inside blocks is {within}."


def _bottleneck_text(numbers: Values, value: float) -> str:
    """Return the bottleneck of the step and the evidence for the prediction; empty if neither is known."""
    words = numbers["bounds"]["words"] if numbers["bounds"] else ""
    limit = [f"{words[0].upper()}{words[1:]}."] if words else []
    error = numbers["fit_error"]
    fit = [f"Block times of the calibration profile deviate from their fit by up to {percent(error)}."] if error else []
    return "\n".join([*limit, *fit, *_describe_evidence(numbers)])


def _published_text(numbers: Values) -> str:
    published = numbers["published"]
    return published["words"] if published else ""


def _likely_interval(numbers: Values) -> str:
    evidence = numbers["evidence"]
    if evidence is None or not evidence["interval_s"]:
        return ""
    return " to ".join(duration(end, "s") for end in evidence["interval_s"])


CONSTANTS: Mapping[str, str] = {
    "product_efficiency": "matrix products", "product_8bit_efficiency": "8-bit products", "attention_efficiency": "attention kernels",
    "eager_attention_efficiency": "older attention kernels", "memory_efficiency": "fused kernels", "eager_memory_efficiency": "separate kernels",
    "kernel_s": "fixed time per kernel", "intra_node_efficiency": "links inside nodes", "inter_node_efficiency": "NICs",
    "intra_node_latency_s": "latency inside nodes", "inter_node_latency_s": "latency between nodes", "overlap": "overlap",
}  # fmt: skip
"""Names of the constants of a device."""


def _describe_evidence(numbers: Values) -> Iterator[str]:
    """Yield sentences about the interval of the step time, similar published runs, and the constants of the device."""
    evidence = numbers["evidence"]
    if evidence is None:
        return
    if published := numbers["published"]:
        yield f"Source of the published step time: {published['source']}."
    if evidence["interval_s"]:
        low, high = (duration(end, "s") for end in evidence["interval_s"])
        yield f"Expected range {low} to {high}: 80% of similar published runs had errors within this range when their source was left out of the fit."
    yield from (f"Similar published run: {run['words']}." for run in evidence["like_runs"])
    constants = (
        f"{CONSTANTS[name]} {quantity(value, 's') if name.endswith('_s') else format(value, '.3g')}"
        for name, value in evidence["constants"].items()
    )
    yield f"Efficiency constants used for {evidence['device']}: {', '.join(constants)}."


def _expense_metric(key: str, label: str, rate: str, write: Callable[[float], str]) -> StepMetric:
    """Return the metric of the price or the energy per million tokens; ``rate`` names the rate of the cluster."""

    def describe_others(numbers: Values, value: float) -> str:
        expense = numbers[key]
        return f"Per step: {write(expense['step'])}. Whole training: {write(expense['training'])}."

    return StepMetric(
        key.partition("_")[0],
        label,
        f"{label} per million tokens: number of devices × step time × {rate} (Cluster, Advanced).",
        lambda numbers: numbers[key]["million_tokens"] if numbers[key] else None,
        lambda numbers, value: write(value),
        lambda numbers, value: "per million tokens",
        better="less",
        is_optional=True,
        detail=describe_others,
    )


STEP_METRICS = (
    StepMetric(
        "iteration",
        "Iteration",
        "Time of one training step (makespan), from the first start to the last end on any mesh.",
        lambda numbers: numbers["makespan_s"],
        _format_time,
        lambda numbers, value: (
            _published_text(numbers)
            or _likely_interval(numbers)
            or f"{format_count(len(numbers['meshes']), 'mesh', 'meshes')}, {format_count(len(numbers['layers_per_stage']), 'stage')}"
        ),
        better="less",
        detail=_bottleneck_text,
    ),
    StepMetric(
        "throughput",
        "Throughput",
        "Sequences per second: dp × microbatches × microbatch size ÷ iteration time. "
        "Tokens per second: sequences per second × sequence length.",
        _number_in_seconds("samples_per_s"),
        lambda numbers, value: _format_rate(value, "seq/s"),
        lambda numbers, value: _format_rate(numbers["tokens_per_s"], "tokens/s"),
        better="more",
    ),
    StepMetric(
        "bubble",
        "Bubble",
        "Share of time in which meshes do not compute: 1 − busy time ÷ (meshes × iteration time). "
        "The span bubble of a mesh is measured from the start of its first action to the end of its last one.",
        lambda numbers: numbers["bubble_ratio"],
        _format_percent,
        lambda numbers, value: f"span {_format_percent(numbers, numbers['span_bubble_ratio'])}",
        better="less",
        share=True,
    ),
    StepMetric(
        "mfu",
        "MFU",
        "Model FLOPs utilization: FLOPs of the model ÷ (peak FLOP/s of all devices used × iteration time). "
        "Recomputation is not counted. With calibrated costs, the peak is the rate measured for large matrix products, "
        "if the profile has it.",
        lambda numbers: numbers["mfu"],
        _format_percent,
        lambda numbers, value: "of the peak FLOP/s",
        better="more",
        share=True,
    ),
    StepMetric(
        "memory",
        "Peak memory",
        "Largest memory in use on any device at one time: weights, gradients, optimizer states, activations "
        "and workspace.",
        lambda numbers: max(numbers["peak_memory_bytes"]),
        lambda numbers, value: quantity(value, "B"),
        _capacity_text,
        better="less",
    ),
    StepMetric(
        "exposed",
        "Exposed communication",
        "Time in which a mesh waits for a transfer or a reduction and does not compute, averaged over the meshes. "
        "Communication that overlaps computation is not counted.\n"
        "Inside blocks: time in which a forward or backward waits for expert exchanges, tensor-parallel reductions or "
        "keys and values of other devices, averaged over the meshes. The bubble counts it as compute time.",
        lambda numbers: numbers["mean_exposed_communication_s"],
        _format_time,
        _describe_exposed,
        better="less",
        detail=_waiting_text,
    ),
    _expense_metric("price", "Price", "price per device-hour", format_number),
    _expense_metric("energy_j", "Energy", "watts per device", format_energy),
)


# ---- the widget ----


@widget("panels/numbers.js", "kit/shell.css")
class Numbers(Canvas):
    """The strip of numbers, and the button that pins the design."""

    tiles = param.String(default=PlainData([]), doc="A tile per metric, as metric_tiles() returns them.")
    stale = param.Dict(default={}, doc="Title and detail if the numbers are of an earlier design; else empty.")
    pinned = param.List(
        default=[], item_type=str, doc="Names of the pinned designs; changes are relative to the first one."
    )
    is_pinned = param.Boolean(default=False, doc="True if the current design is pinned.")
    can_pin = param.Boolean(default=False, doc="True if the numbers are of the current design.")

    def __init__(self, session: Session, on_compare: Callable[[], Any] | None = None, **params: Any) -> None:
        """Create the strip; ``on_compare`` opens the table of the pinned designs."""
        super().__init__(**params)
        self._session, self._open_comparison = session, on_compare
        self._find_run_errors: Callable[[Prediction], ErrorRange | None] = lambda prediction: None
        session.watch_later(self._update_tiles, ["design", "prediction", "problems", "pinned"])
        self._update_tiles()

    def show_run_errors(self, find: Callable[[Prediction], ErrorRange | None]) -> None:
        """Show the errors of earlier runs, which ``find`` returns for a prediction."""
        self._find_run_errors = find
        self._update_tiles()

    def _update_tiles(self) -> None:
        session = self._session
        prediction, pinned = session.prediction, session.pinned
        tiles = strip_tiles(prediction, pinned[0] if pinned else None)
        if prediction is not None and (errors := self._find_run_errors(prediction)) is not None:
            _add_run_errors(next(tile for tile in tiles if tile["key"] == "iteration"), errors)
        self.param.update(
            tiles=PlainData(tiles),
            stale=describe_staleness(session),
            is_pinned=any(each.design == session.design for each in pinned),
            pinned=distinct_titles([*(each.design for each in pinned), session.design])[:-1],
            can_pin=not session.is_stale,
        )

    def preview(self, tried: Prediction | None) -> None:
        """Show the numbers of a trial during a gesture; None shows the current ones."""
        if tried is None:
            self._update_tiles()
        else:
            pinned = self._session.pinned
            self.tiles = PlainData(strip_tiles(tried, pinned[0] if pinned else None))

    def _on_pin(self) -> None:
        self._session.pin()

    def _on_end(self) -> None:
        self._session.end_comparison()

    def _on_compare(self) -> None:
        if self._open_comparison is not None:
            self._open_comparison()


def _add_run_errors(tile: dict[str, Any], errors: ErrorRange) -> None:
    """Add the errors of earlier runs to the tile of the step time."""
    low, high = percent_change(errors.low), percent_change(errors.high)
    tile["small"] = f"earlier runs {low}" if low == high else f"earlier runs {low} to {high}"
    runs = format_count(errors.runs, "run")
    tile["help"] += (
        f"\nMeasured step time of {runs} of this design with these costs: {low} to {high} of the prediction."
    )


def describe_staleness(session: Session) -> dict[str, str]:
    """Return title and detail if the numbers are of an earlier design; else an empty dictionary."""
    if not session.is_stale or (session.is_computing and not session.progress):
        return {}
    if session.progress:
        kept = "Showing the numbers of the last valid design." if session.prediction is not None else "No numbers yet."
        title = "Computing …" if session.is_computing else "Computation stopped"
        return {
            "title": title,
            "detail": f"{kept} {COMPUTING_PROBLEM.message if session.is_computing else STOPPED_PROBLEM.message}",
        }
    errors = session.errors
    reasons = "\n".join(map(str, errors[:3]))
    count = format_count(len(errors), "error")
    if session.prediction is None:
        return {"title": "Not simulated yet", "detail": f"{count}:\n{reasons}"}
    name = session.prediction.design.name
    return {
        "title": "Last valid design",
        "detail": f"Showing the numbers of the last valid design, {name!r}; {count}:\n{reasons}",
    }
