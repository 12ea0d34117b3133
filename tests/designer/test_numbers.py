"""The tiles with the figures of a prediction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshwave.designer.pages.design_widgets import Widgets
from meshwave.designer.state.design_session import Session
from meshwave.designer.state.studio import Studio
from meshwave.designer.views.numbers import (
    STEP_METRICS,
    Numbers,
    describe_staleness,
    metric_change,
    metric_tiles,
    strip_tiles,
)
from meshwave.engine.document import Design, load_design
from meshwave.engine.files import example
from meshwave.engine.predict.prediction import predict
from meshwave.engine.units import quantity


def tile(key: str, *given: Any) -> dict[str, Any]:
    return next(each for each in metric_tiles(*given) if each["key"] == key)


def test_the_other_views_are_updated_once_after_the_timeline_is_sent(seconds: Design, studio: Studio) -> None:
    turns: list[Callable[[], None]] = []
    session = Session(seconds, turns.append)
    page = Widgets(session, studio)
    before, tiles, form, wave = page.timeline.packed, page.numbers.tiles, page.form.sections, page.wave.picture
    updates: list[None] = []
    session.watch_later(lambda: updates.append(None), ["design", "prediction"])

    session.edit("pipeline.microbatches", seconds.pipeline.microbatches + 1, "one more")
    assert page.timeline.packed != before
    assert "numbers" not in vars(session.prediction)
    assert (page.form.sections, page.wave.picture) == (form, wave)
    for call in turns:
        call()

    assert page.numbers.tiles.data == strip_tiles(session.prediction) != tiles.data
    assert page.form.sections != form
    assert page.wave.picture != wave
    assert len(updates) == 1


def test_unit_costs_are_shown_in_units_without_a_throughput(design: Design) -> None:
    prediction = predict(design)

    assert tile("iteration", prediction)["value"] == f"{prediction.timeline.makespan:.4g} units"
    for key in ("throughput", "mfu"):
        assert tile(key, prediction)["value"] == "–"
        assert "roofline" in tile(key, prediction)["help"]


def test_the_tiles_of_a_design_in_seconds(seconds: Design) -> None:
    prediction = predict(seconds)
    numbers = prediction.numbers

    shown = {each["key"]: each for each in strip_tiles(prediction)}

    assert list(shown) == ["iteration", "throughput", "bubble", "mfu", "memory", "exposed"]
    assert shown["iteration"]["value"].endswith("ms")
    words = numbers["bounds"]["words"]
    assert shown["iteration"]["help"].endswith(f"{words[0].upper()}{words[1:]}.")
    assert shown["throughput"]["value"].endswith("seq/s")
    assert shown["throughput"]["small"].endswith("tokens/s")
    assert shown["exposed"]["small"].endswith("% of the iteration")
    assert shown["bubble"]["value"] == f"{100 * numbers['bubble_ratio']:.1f}%"
    assert "span" in shown["bubble"]["small"]
    assert shown["memory"]["bar"] == max(numbers["peak_memory_bytes"]) / numbers["capacity_bytes"]
    assert all(each["change"] is None for each in shown.values())


def test_exposed_communication_is_the_mean_of_the_meshes_next_to_that_inside_blocks() -> None:
    prediction = predict(load_design(example("20-unequal-meshes")))
    exposed, inside = prediction.numbers["exposed_communication_s"], prediction.numbers["inside_communication_s"]

    shown = tile("exposed", prediction)

    assert shown["value"] == quantity(sum(exposed) / 2, "s")
    assert shown["small"] == f"+ {quantity(sum(inside) / 2, 's')} inside blocks"
    share = 100 * sum(inside) / 2 / prediction.timeline.makespan
    assert shown["help"].endswith(f"; communication inside blocks is {share:.1f}%.")


def test_memory_that_does_not_fit_is_marked(seconds: Design) -> None:
    session = Session(seconds)
    session.edit("cluster.device.memory_bytes", 1e9, "less memory")

    shown = tile("memory", session.prediction)

    assert (shown["bar"], shown["wrong"]) == (1.0, "does not fit")
    assert shown["small"].startswith("in 1 GB, mesh ")


def test_a_change_is_better_or_worse_depending_on_the_figure(seconds: Design) -> None:
    pinned = predict(seconds)
    session = Session(seconds)
    session.edit("pipeline.microbatches", 64, "64 microbatches")

    changes = {each["key"]: each["change"] for each in metric_tiles(session.prediction, pinned)}

    assert (changes["iteration"]["arrow"], changes["iteration"]["verdict"]) == ("rise", "worse")
    assert (changes["throughput"]["arrow"], changes["throughput"]["verdict"]) == ("rise", "better")
    assert (changes["bubble"]["arrow"], changes["bubble"]["verdict"]) == ("fall", "better")
    assert changes["bubble"]["text"].endswith("pts")
    assert seconds.name in changes["bubble"]["spoken"]
    assert "better" in changes["bubble"]["spoken"]


def test_a_change_under_one_percent_is_neither_better_nor_worse(seconds: Design) -> None:
    metric = next(each for each in STEP_METRICS if each.key == "memory")
    before = predict(seconds).numbers
    after = {**before, "peak_memory_bytes": [1.004 * each for each in before["peak_memory_bytes"]]}

    change = metric_change(metric, after, before)

    assert change is not None
    assert (change["text"], change["arrow"], change["verdict"]) == ("0.4%", "rise", "similar")


def test_price_and_energy_are_shown_where_the_cluster_has_a_rate(seconds: Design) -> None:
    session = Session(seconds)
    assert not {"price", "energy"} & {tile["key"] for tile in strip_tiles(session.prediction)}

    session.edit("cluster.price_per_device_hour", 2.5, "a price")

    shown = {tile["key"]: tile for tile in strip_tiles(session.prediction)}
    assert "energy" not in shown
    assert shown["price"]["small"] == "per million tokens"
    assert "Whole training: " in shown["price"]["help"]


def test_no_change_is_reported_as_such(seconds: Design) -> None:
    shown = tile("iteration", predict(seconds), predict(seconds))["change"]

    assert (shown["verdict"], shown["text"]) == ("same", "")


def test_units_are_not_compared_with_seconds(design: Design, seconds: Design) -> None:
    changes = {each["key"]: each["change"] for each in metric_tiles(predict(seconds), predict(design))}

    assert changes["iteration"] is None
    assert changes["exposed"] is None
    assert changes["bubble"] is not None
    assert changes["memory"] is not None


def test_before_the_first_prediction_the_tiles_are_marked() -> None:
    assert {each["value"] for each in metric_tiles(None)} == {"–"}
    assert {each["small"] for each in metric_tiles(None)} == {"not simulated yet"}


def test_numbers_of_an_earlier_design_are_marked(session: Session) -> None:
    numbers = Numbers(session)
    assert describe_staleness(session) == {}

    session.edit("model.layers", 3, "3 layers")

    assert numbers.stale["title"] == "Last valid design"
    assert "1 error:" in numbers.stale["detail"]
    session.undo()
    assert numbers.stale == {}


def test_the_pin_follows_the_session(session: Session) -> None:
    numbers = Numbers(session)

    numbers._handle_msg({"type": "pin"})

    assert session.pinned == [session.prediction]
    assert (numbers.is_pinned, numbers.pinned) == (True, [session.design.name])
    session.edit("pipeline.microbatches", 6, "6 microbatches")
    assert (numbers.is_pinned, numbers.pinned) == (False, [f"{session.design.name} (microbatches 4)"])
    numbers._handle_msg({"type": "end"})
    assert session.pinned == []
