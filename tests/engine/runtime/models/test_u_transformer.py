"""A model with skip connections trains like one process, whatever stages they skip."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from meshwave.engine.document import parse_design
from meshwave.engine.lowering.lower import lower
from tests.engine.runtime.equality import assert_equal, assert_same_bits, case_name, reference

Document = dict[str, Any]
Skips = list[tuple[int, int, int]]

CASES: list[tuple[Document, int, int, int, Skips, Document]] = [
    ({"schedule": "1f1b", "microbatches": 4}, 2, 1, 5, [(0, 1, 2)], {}),
    ({"schedule": "1f1b", "microbatches": 6}, 4, 1, 8, [(0, 3, 2), (1, 2, 2)], {"clip_norm": 0.5, "steps": 3}),
    ({"schedule": "eager-1f1b", "microbatches": 5}, 3, 1, 7, [(0, 1, 1), (0, 2, 2)], {}),
    ({"schedule": "eager-1f1b", "backward": "split", "microbatches": 5}, 4, 1, 8, [(0, 3, 2), (1, 2, 2)], {}),
    ({"schedule": "gpipe", "microbatches": 3, "stages": [1, 1, 5]}, 3, 2, 7, [(0, 2, 1), (1, 2, 1)], {}),
    ({"schedule": "hanayo", "waves": 1, "microbatches": 4}, 2, 2, 8, [(0, 3, 2), (1, 2, 2)], {}),
    ({"schedule": "hanayo", "waves": 2, "microbatches": 4}, 2, 1, 9, [(0, 6, 1), (0, 7, 1), (1, 5, 1), (2, 4, 1)], {}),
    ({"schedule": "interleaved-1f1b", "chunks": 2, "microbatches": 4}, 2, 1, 8, [(0, 3, 2), (1, 2, 2)], {}),
    ({"schedule": "chimera", "microbatches": 4}, 4, 1, 8, [(0, 3, 2), (1, 2, 2)], {"clip_norm": 0.5}),
    ({"schedule": "zb-h1", "microbatches": 6}, 4, 1, 9, [(0, 2, 1), (0, 3, 2), (1, 2, 1)], {}),
    ({"schedule": "zb-v", "microbatches": 4, "recompute": "full"}, 2, 1, 8, [(0, 3, 2), (1, 2, 2)], {}),
    ({"schedule": "dualpipe", "microbatches": 4}, 2, 1, 6, [(0, 1, 3)], {}),
    ({"schedule": "1f1b", "microbatches": 4, "recompute": "full"}, 3, 2, 6, [(0, 2, 2)], {}),
    ({"schedule": "zb-h1", "microbatches": 4, "recompute": [0, 3]}, 4, 1, 8, [(0, 3, 2), (1, 2, 2)], {}),
    ({"schedule": "hanayo", "waves": 1, "microbatches": 4}, 3, 1, 12, [(0, 5, 2), (1, 4, 2), (2, 3, 2)],
     {"precision": "bf16", "optimizer": "sgd"}),
]  # fmt: skip
"""A pipeline, the number of meshes, copies and layers, the skips between its stages, and options of training."""


@pytest.mark.parametrize(("pipeline", "pp", "dp", "layers", "skips", "options"), CASES, ids=case_name)
def test_skip_connections_train_like_one_process(
    pipeline: Document,
    pp: int,
    dp: int,
    layers: int,
    skips: Skips,
    options: Document,
    crew: Any,
    draw: Callable[..., Document],
) -> None:
    document = draw(pipeline, pp=pp, dp=dp, kind="u-transformer", layers=layers, **options)
    assert lower(parse_design(document)).skips.tolist() == list(map(list, skips))

    assert_equal(crew.train(document), reference(document), options.get("precision", "fp64"))


def test_skip_connections_train_like_one_process_under_tensor_parallelism(
    crew: Any, draw: Callable[..., Document]
) -> None:
    document = draw({"schedule": "1f1b", "microbatches": 4}, pp=3, tp=2, kind="u-transformer", layers=7, clip_norm=0.5)
    assert_equal(crew.train(document), reference(document))


def test_skip_connections_train_like_one_process_on_meshes_of_different_shapes(
    crew: Any, draw: Callable[..., Document]
) -> None:
    """Messages of one, two and three tensors, all of which are resharded."""
    document = draw({"schedule": "zb-h1", "microbatches": 4, "stages": [3, 2, 4]}, pp=3, kind="u-transformer", layers=9)
    for mesh, devices, dp, tp in zip(document["meshes"], ([0, 1], [2], [3, 4]), (2, 1, 1), (1, 1, 2), strict=True):
        mesh |= {"devices": devices, "axes": {"dp": dp, "tp": tp}}
    document["cluster"] |= {"nodes": 3, "devices_per_node": 2}
    document["transfer"] = {"strategy": "broadcast", "ordering": "ensemble"}
    program = lower(parse_design(document))
    assert set(program.tensors.tolist()) == {0, 1, 2, 3}

    assert_equal(crew.train(document), reference(document))


def test_recomputation_of_skip_connections_changes_no_bit(crew: Any, draw: Callable[..., Document]) -> None:
    kept, recomputed = (
        crew.train(
            draw({"schedule": "1f1b", "microbatches": 4, "recompute": how}, pp=3, kind="u-transformer", layers=6)
        )
        for how in ("none", "full")
    )
    assert_same_bits(recomputed, kept)
