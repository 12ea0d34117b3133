"""Pictures of timelines: they are self-contained and labelled; timelines that cannot be drawn are refused."""

from __future__ import annotations

from dataclasses import replace
from io import BytesIO
from xml.etree import ElementTree

import numpy as np
import pytest

from meshwave.engine.document import load_design
from meshwave.engine.errors import InputError
from meshwave.engine.exports import exports
from meshwave.engine.exports.pictures.palette import OPS, SURFACES, rgb
from meshwave.engine.exports.pictures.rows import Row, ShownTimeline, Strips, column_peaks, mean_heights
from meshwave.engine.exports.pictures.shapes import Box, Text
from meshwave.engine.exports.pictures.timelines import lay_out_timelines
from meshwave.engine.exports.png import draw_png
from meshwave.engine.exports.svg import draw_svg
from meshwave.engine.files import example
from meshwave.engine.predict.prediction import predict
from meshwave.engine.program.timeline import Timeline
from tests.designer.timelines import one_f_one_b

SPACE = "{http://www.w3.org/2000/svg}"


def test_an_svg_has_every_block_with_its_tooltip() -> None:
    picture = ElementTree.fromstring(draw_svg(one_f_one_b(4, 8), title="four <meshes> & eight"))

    assert picture.findtext(f"{SPACE}title") == "four <meshes> & eight"
    blocks = [title.text for title in picture.iterfind(f"{SPACE}rect/{SPACE}title")]
    assert len(blocks) == 2 * 4 * 8
    assert "2B5 on mesh C: starts at 21 ms, takes 2 ms" in blocks


def test_an_svg_of_a_window_has_the_blocks_within_it() -> None:
    timeline = one_f_one_b(4, 8, forward_s=1.0)

    picture = ElementTree.fromstring(draw_svg(timeline, unit="units", window=(0, 4)))

    blocks = [title.text or "" for title in picture.iterfind(f"{SPACE}rect/{SPACE}title")]
    assert sorted(says.split()[0] for says in blocks) == sorted("0F0 0F1 0F2 0F3 1F0 1F1 1F2 2F0 2F1 3F0".split())
    assert "ms" not in "".join(blocks)


def test_an_svg_is_self_contained() -> None:
    text = draw_svg(one_f_one_b(2, 2))

    assert "href" not in text
    assert text.count("http") == 1  # the namespace


def test_too_many_blocks_for_an_svg_are_refused_with_a_remedy() -> None:
    with pytest.raises(InputError, match="65,536 blocks are too many .*at most 50,000.* or a PNG"):
        draw_svg(one_f_one_b(64, 512))


@pytest.mark.slow
def test_a_picture_of_some_rows_has_their_lanes_and_strips_only() -> None:
    prediction = predict(load_design(example("10-bert-on-tacc")))
    rows = (
        Row("summary", "node 0", ranks=(0, 1, 2)),
        Row("title", "node 1", "two lanes"),
        Row("lanes", ranks=(5, 3)),
        Row("links", "NIC 1 out", ports=("NIC 1 out",)),
        Row("memory", "D", ranks=(3,)),
    )

    shown = (ShownTimeline(prediction.timeline, "", rows, prediction),)
    picture = ElementTree.fromstring(exports["svg"].shown_bytes(prediction, shown))

    blocks = {(title.text or "").split(":")[0].split()[-1] for title in picture.iterfind(f"{SPACE}rect/{SPACE}title")}
    assert blocks == {"D", "F"}
    left = sorted((float(text.get("y", 0)), text.text) for text in picture.iterfind(f"{SPACE}text[@x='16.00']"))
    assert [text for _, text in left[1:]] == ["node 0", "node 1", "F", "D", "NIC 1 out", "D"]
    filled = [path.get("fill") for path in picture.iterfind(f"{SPACE}path") if path.get("fill") != "none"]
    assert filled == [
        SURFACES["light"]["muted"],
        OPS["light"]["SEND_B"],
        OPS["light"]["SEND_F"],
        SURFACES["light"]["memory"],
    ]
    for form in ("png", "html"):
        assert exports[form].shown_bytes(prediction, shown) != exports[form].to_bytes(prediction)


def test_a_picture_has_pinned_designs_above_and_a_run_in_the_lower_halves_of_the_lanes() -> None:
    open_design, run = one_f_one_b(4, 4), one_f_one_b(4, 4, source="measured", slower=0.2)
    shown = (
        ShownTimeline(one_f_one_b(2, 4), "Pinned: two"),
        ShownTimeline(open_design, "four"),
        ShownTimeline(run, "Measured", over=True),
    )

    picture = lay_out_timelines(shown)

    boxes = [shape for shape in picture.shapes if isinstance(shape, Box) and shape.words]
    tops = [
        {each.y for each in boxes if each.words == timeline_words}
        for timeline_words in ("1F0 on mesh B: starts at 1 ms, takes 1 ms", *_words_of(run, "1F0"))
    ]
    assert [len(found) for found in tops] == [2, 1]  # of the pinned and the open design; of the run
    pinned, lane = sorted(tops[0])
    (half,) = tops[1]
    assert pinned < lane < half
    heights = {each.y: each.height for each in boxes}
    assert lane + heights[lane] <= half
    assert heights[pinned] > heights[lane] == heights[half]
    texts = [shape.text for shape in picture.shapes if isinstance(shape, Text)]
    assert [text for text in texts if text in ("predicted", "measured")] == ["predicted"] * 4 + ["measured"] * 4
    assert {"Pinned: two", "four"} <= set(texts)
    assert sum("(lower half)" in text for text in texts) == 1


def _words_of(timeline: Timeline, action: str) -> list[str]:
    picture = lay_out_timelines((ShownTimeline(timeline),))
    boxes = [shape for shape in picture.shapes if isinstance(shape, Box)]
    return [each.words for each in boxes if each.words.startswith(f"{action} on mesh B")]


def test_all_timelines_of_a_picture_count_towards_the_blocks_of_an_svg() -> None:
    prediction = predict(load_design(example("02-two-waves")))
    many = ShownTimeline(one_f_one_b(64, 256))

    with pytest.raises(InputError, match="65,536 blocks are too many"):
        exports["svg"].shown_bytes(prediction, (many, many._replace(over=True)))


def test_a_strip_shows_the_mean_of_spans_and_the_peak_of_a_curve_in_each_column() -> None:
    edges = np.array([0.0, 1.0, 2.0, 4.0])

    means = mean_heights(np.array([0.5, 0.0]), np.array([3.0, 1.0]), np.array([0.5, 0.25]), edges)
    peaks = column_peaks((np.array([0.0, 0.5, 0.75, 2.0]), np.array([1.0, 9.0, 3.0, 2.0])), edges)

    assert means == pytest.approx([0.5, 0.5, 0.25])
    assert peaks.tolist() == [9, 3, 2]


def test_memory_above_the_capacity_has_the_colour_of_a_warning() -> None:
    prediction = predict(load_design(example("10-bert-on-tacc")))
    peak = max(held.max() for _, held in prediction.memory_curves)
    small = replace(prediction, costs=replace(prediction.costs, capacity_bytes=0.9 * peak))
    row = Row("memory", "A", ranks=(0,))

    for each, is_over in ((prediction, False), (small, True)):
        parts = Strips(each).draw(row, np.linspace(0, each.timeline.makespan, 50)).parts
        assert bool(parts["warning"].any()) is is_over
        assert 0 < (parts["memory"] + parts["warning"]).max() < 1


def test_an_empty_window_is_refused() -> None:
    with pytest.raises(InputError, match="the window 3 to 2 is empty"):
        lay_out_timelines((ShownTimeline(one_f_one_b(2, 2)),), window=(3, 2))


def test_an_empty_timeline_is_refused() -> None:
    full = one_f_one_b(2, 2)
    nothing = Timeline("predicted", "", full.meshes, *(np.empty(0, getattr(full, name).dtype) for name in COLUMNS))

    with pytest.raises(InputError, match="no spans"):
        lay_out_timelines((ShownTimeline(nothing),))


COLUMNS = ("rank", "peer", "op", "stage", "microbatch", "fused", "start", "end", "cause")


def pixels(data: bytes) -> np.ndarray:
    from PIL import Image

    return np.asarray(Image.open(BytesIO(data)).convert("RGB"))


@pytest.mark.slow
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_png_shows_forwards_backwards_and_idle_time(theme: str) -> None:
    picture = lay_out_timelines((ShownTimeline(one_f_one_b(4, 8)),), theme=theme, width=900)  # type: ignore[arg-type]
    image = pixels(draw_png(picture, ratio=1))

    seen = set(map(tuple, image.reshape(-1, 3).tolist()))
    assert image.shape[1] == 900
    colours = (OPS[theme]["F"], OPS[theme]["B"], SURFACES[theme]["idle"], SURFACES[theme]["background"])  # type: ignore[index]
    assert {rgb(colour) for colour in colours} <= seen


def test_a_dense_png_shows_shares_not_a_mixture() -> None:
    image = pixels(draw_png(lay_out_timelines((ShownTimeline(one_f_one_b(64, 512)),)), ratio=1))

    lanes = image[90:, 400:1100].reshape(-1, 3)
    share = {op: float((lanes == rgb(OPS["light"][op])).all(axis=1).mean()) for op in ("F", "B")}
    assert share["F"] == pytest.approx(share["B"] / 2, rel=0.25)
    assert share["F"] + share["B"] > 0.7  # the rest is the gaps between lanes
