"""Assignment of layers to stages: no other assignment has a faster slowest stage."""

from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwave.engine.costs import balanced_split, equal_split, layers_per_stage
from meshwave.engine.document import Design
from meshwave.engine.errors import InputError


def splits(layers: int, stages: int) -> Iterator[tuple[int, ...]]:
    """Yield every way to give each stage at least one layer."""
    if stages == 1:
        yield (layers,)
        return
    for held in range(1, layers - stages + 2):
        yield from ((held, *rest) for rest in splits(layers - held, stages - 1))


def slowest(split: tuple[int, ...], layer: list[float], extra: list[float]) -> float:
    return max(n * each + more for n, each, more in zip(split, layer, extra, strict=True))


@st.composite
def pipelines(draw: st.DrawFn) -> tuple[int, list[float], list[float]]:
    stages = draw(st.integers(1, 4))
    layers = draw(st.integers(stages, 10))
    positive, any_extra = st.floats(0.1, 10), st.floats(0, 20)
    sized = {"min_size": stages, "max_size": stages}
    return layers, draw(st.lists(positive, **sized)), draw(st.lists(any_extra, **sized))


@given(pipelines())
def test_no_split_is_faster(pipeline: tuple[int, list[float], list[float]]) -> None:
    layers, layer, extra = pipeline

    split = balanced_split(layers, layer, extra)

    assert sum(split) == layers
    assert min(split) >= 1
    best = min(slowest(other, layer, extra) for other in splits(layers, len(layer)))
    assert slowest(split, layer, extra) == pytest.approx(best)


@given(st.integers(1, 12), st.integers(0, 40))
def test_equal_costs_are_split_equally(stages: int, more: int) -> None:
    layers = stages + more

    assert balanced_split(layers, [0.3] * stages, [0.0] * stages) == equal_split(layers, stages)
    assert max(equal_split(layers, stages)) - min(equal_split(layers, stages)) <= 1


def test_among_the_fastest_splits_the_most_equal_is_taken() -> None:
    # The last stage takes 9 with a single layer, so that any other may hold up to nine.
    assert balanced_split(10, [1, 1, 1, 1], [0, 0, 0, 8]) == (3, 3, 3, 1)


def test_a_heavy_head_takes_layers_from_its_stage() -> None:
    assert balanced_split(16, [1.0] * 4, [0.5, 0, 0, 2.5]) == (4, 5, 5, 2)


def test_a_stage_without_a_layer_is_refused() -> None:
    with pytest.raises(InputError, match="5 stages need at least 5 layers, and the model has 4"):
        equal_split(4, 5)


def test_given_stages_are_kept(design: Callable[..., Design]) -> None:
    given_stages = {"schedule": "1f1b", "microbatches": 4, "stages": [5, 9, 9, 9]}

    assert layers_per_stage(design(pipeline=given_stages)) == (5, 9, 9, 9)


def test_unit_costs_split_equally(design: Callable[..., Design]) -> None:
    assert layers_per_stage(design(cost={"kind": "unit"}, model={"layers": 34})) == (9, 9, 8, 8)


def test_roofline_gives_the_stage_with_the_head_fewer_layers(design: Callable[..., Design]) -> None:
    large = {"layers": 24, "hidden": 1024, "heads": 16, "sequence": 1024, "vocab": 50257}

    split = layers_per_stage(design(model=large))

    assert sum(split) == 24
    assert split[-1] < min(split[:-1])


def test_a_faster_mesh_gets_more_layers(design: Callable[..., Design]) -> None:
    meshes = [
        {"name": "one", "devices": [0], "axes": {"tp": 1}},
        {"name": "four", "devices": [4, 5, 6, 7], "axes": {"tp": 4}},
    ]
    large = {"layers": 20, "hidden": 4096, "heads": 32, "sequence": 2048, "vocab": 300}

    one, four = layers_per_stage(design(meshes=meshes, model=large))

    assert four > 2 * one
