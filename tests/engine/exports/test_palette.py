"""Colours are distinguishable, and text on them is readable."""

from __future__ import annotations

import numpy as np
import pytest

from meshwave.engine.exports.pictures.palette import (
    OPS,
    SURFACES,
    Theme,
    block_colour,
    contrast,
    shades,
    text_colour,
    tints,
)
from meshwave.engine.program.action import Op
from tests.designer.timelines import one_f_one_b

THEMES: tuple[Theme, ...] = ("light", "dark")


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("op", ["F", "B", "I", "W", "REDUCE_GRAD", "STEP"])
def test_text_on_every_shade_of_every_op_is_readable(op: str, theme: Theme) -> None:
    for tint in np.linspace(0, 0.7, 15):
        colour = block_colour(Op[op], tint, theme)
        assert contrast(text_colour(colour), colour) >= 4.5


@pytest.mark.parametrize("theme", THEMES)
def test_every_op_stands_out_from_idle_time(theme: Theme) -> None:
    for op in ("F", "B", "I", "W", "STEP"):
        assert contrast(OPS[theme][op], SURFACES[theme]["idle"]) >= 1.9


@pytest.mark.parametrize("theme", THEMES)
def test_text_of_the_page_is_readable(theme: Theme) -> None:
    surface = SURFACES[theme]
    for words in ("text", "muted", "warning"):
        assert contrast(surface[words], surface["background"]) >= 4.5


def test_a_pipeline_without_waves_has_one_shade() -> None:
    assert shades(one_f_one_b(4, 2)).tolist() == [[0] * 4] * 4


def test_a_wave_goes_down_and_up() -> None:
    assert shades_of([0, 1, 2, 2, 1, 0]) == [0, 0, 0, 1, 1, 1]
    assert shades_of([0, 1, 1, 0, 0, 1, 1, 0]) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_interleaved_chunks_all_go_down() -> None:
    assert shades_of([0, 1, 2, 0, 1, 2, 0, 1, 2]) == [0, 0, 0, 2, 2, 2, 4, 4, 4]
    assert shades_of([0, 1, 0, 1]) == [0, 0, 2, 2]


def shades_of(route: list[int]) -> list[int]:
    """Return the shade of each stage of one microbatch with the given route over the ranks."""
    base = one_f_one_b(max(route) + 1, 1)
    stages = len(route)
    timeline = type(base)(
        source="predicted",
        digest="",
        meshes=base.meshes,
        rank=np.array(route, np.int32),
        peer=np.full(stages, -1, np.int32),
        op=np.zeros(stages, np.int8),
        stage=np.arange(stages, dtype=np.int32),
        microbatch=np.zeros(stages, np.int32),
        fused=np.zeros(stages, np.bool_),
        start=np.arange(stages, dtype=float),
        end=np.arange(stages, dtype=float) + 1,
        cause=np.arange(stages) - 1,
    )
    shade = shades(timeline)
    return [int(shade[rank, stage]) for stage, rank in enumerate(route)]


def test_shades_of_one_picture_are_distinguishable() -> None:
    for highest in range(8):
        parts = tints(np.array([highest], np.uint8))
        used = parts[:: 1 if highest % 2 else 2]
        assert len(parts) > highest
        assert all(0 <= part <= 0.7 for part in used)
        assert len(set(used)) == len(used)


@pytest.mark.parametrize("theme", THEMES)
def test_input_and_weight_gradients_differ_in_lightness(theme: Theme) -> None:
    assert contrast(OPS[theme]["I"], OPS[theme]["W"]) >= 1.5
