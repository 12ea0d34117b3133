"""A microbatch of padded documents costs what sequences of its length cost: compute, messages and tokens."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest

from meshwave.engine.costs import estimate, layers_per_stage
from meshwave.engine.costs.padded_documents import padded_lengths, possible_lengths
from meshwave.engine.document import Design, parse_design
from meshwave.engine.lowering.lower import lower
from meshwave.engine.predict.prediction import predict
from meshwave.engine.program.action import Op
from meshwave.engine.runs.dry_run import plan_waits
from tests.engine.costs.test_packed_documents import packed_design, seconds_by_microbatch

LENGTHS = [4096, 1000, 300, 9000]
"""Documents of four microbatches; the last one is cut."""


def padded_design(lengths: list[int] | None, **changes: Any) -> Design:
    design = packed_design(lengths, **changes)
    training = design.training.model_copy(update={"pad_documents": True})
    return design.model_copy(update={"training": training})


def unpadded_design(length: int) -> Design:
    """Return a design with sequences of this length, and the same stages."""
    design = packed_design(None, sequence=length)
    stages = layers_per_stage(padded_design(LENGTHS))
    return design.model_copy(update={"pipeline": design.pipeline.model_copy(update={"stages": stages})})


@pytest.mark.parametrize("op", [Op.F, Op.B, Op.SEND_F])
def test_each_microbatch_takes_the_time_of_sequences_of_its_length(op: Op) -> None:
    found = seconds_by_microbatch(padded_design(LENGTHS), op, 0)
    expected = [seconds_by_microbatch(unpadded_design(length), op, 0)[0] for length in (4096, 1000, 300, 4096)]
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    assert found[2] < found[1] < found[0]


def test_lengths_between_the_priced_ones_are_interpolated() -> None:
    lengths = [*range(100, 4000, 39)]
    design = padded_design(lengths)
    design = design.model_copy(update={"pipeline": design.pipeline.model_copy(update={"microbatches": 100})})
    found = np.array(seconds_by_microbatch(design, Op.F))
    exact = [seconds_by_microbatch(unpadded_design(length), Op.F)[0] for length in lengths[::7]]
    assert (np.diff(found) > 0).all()
    np.testing.assert_allclose(found[::7], exact, rtol=0.05)


def test_messages_and_tokens_are_those_of_the_documents() -> None:
    design = padded_design(LENGTHS)
    program = lower(design)
    costs = estimate(design, program)
    rows = np.flatnonzero(program.op == Op.SEND_F)
    size = costs.bytes[rows][np.argsort(program.microbatch[rows])]
    np.testing.assert_allclose(size / size[0], [1, 1000 / 4096, 300 / 4096, 1])
    assert costs.tokens == 4096 + 1000 + 300 + 4096
    assert costs.model_flops < estimate(padded_design(None), program).model_flops
    assert costs.seconds[program.op == Op.STEP] == pytest.approx(
        estimate(padded_design(None), program).seconds[program.op == Op.STEP]
    )


def test_a_microbatch_has_the_length_of_the_longest_row_of_the_replica_with_the_most_tokens() -> None:
    """The first replica has the first eight documents, two per microbatch."""
    lengths = [10, 20, 30, 5, 7, 7, 1, 2, *[100, 1] * 4]
    for design, expected in (
        (padded_design(lengths[:8], rows=2), [20, 30, 7, 2]),
        (padded_design(lengths, rows=2, dp=2), [100] * 4),
    ):
        np.testing.assert_array_equal(padded_lengths(design), expected)


MOE = {"experts": 4}
SEQUENCE_PARALLEL, SLICED = {"training": {"sequence_parallel": True}}, {"transfer": {"boundary": "sequence"}}


@pytest.mark.parametrize(
    ("axes", "sections", "model", "expected"),
    [
        (({"tp": 4},) * 2, {}, {}, [4096, 1001, 300, 7]),
        (({"tp": 4},) * 2, SEQUENCE_PARALLEL, {}, [4096, 1004, 300, 8]),
        (({"cp": 2, "tp": 2},) * 2, {}, {}, [4096, 1004, 300, 8]),
        (({"cp": 2, "tp": 4},) * 2, SEQUENCE_PARALLEL, {}, [4096, 1008, 304, 8]),
        (({"tp": 4},) * 2, {}, {"moe": MOE}, [4096, 1004, 300, 8]),
        (({"tp": 4},) * 2, SLICED, {}, [4096, 1024, 512, 256]),
        (({"tp": 4}, {"tp": 2}), {}, {}, [4096, 1024, 512, 256]),
    ],
)
def test_a_padded_length_is_a_multiple_of_the_parts_of_its_tokens_or_has_a_plan(
    axes: tuple[dict[str, int], ...], sections: dict[str, Any], model: dict[str, Any], expected: list[int]
) -> None:
    document = padded_design([4096, 1001, 300, 7]).model_dump(mode="json")
    for number, (mesh, shape) in enumerate(zip(document["meshes"], axes, strict=True)):
        mesh |= {"axes": shape, "devices": [*range(number * 8, number * 8 + prod(shape.values()))]}
    document["cluster"]["devices_per_node"] = 16
    document["model"] |= model
    document["experts"] |= {"ep": 4} if model else {}
    for section, settings in sections.items():
        document[section] |= settings
    design = parse_design(document)

    assert padded_lengths(design).tolist() == expected  # type: ignore[union-attr]
    assert set(expected) <= set(possible_lengths(design))


@pytest.mark.parametrize("model", [{}, {"moe": MOE}])
def test_replicas_that_exchange_tokens_have_the_same_lengths(model: dict[str, Any]) -> None:
    lengths = [10, 20, 30, 5, 7, 70, 1, 2]
    design = padded_design(lengths, dp=2, **model)
    np.testing.assert_array_equal(padded_lengths(design), [10, 70, 30, 5] if model else [7, 70, 1, 2])


def test_masked_models_take_the_attention_of_their_documents_and_of_the_padding() -> None:
    """It is that of the same documents, with the padding as further ones, packed into sequences."""
    lengths = [4096, 1000, 2048, 300]
    padded = padded_design([*lengths, 4096, 4096, 100, 100], rows=2, kind="bert")
    packed = packed_design([4096, 1000, 3096, 4096, 4096, 4096, 4096, 4096], rows=2, kind="bert")
    short = packed_design([2048, 300, 1748], rows=2, kind="bert", sequence=2048)
    stages = layers_per_stage(padded)
    packed, short = (
        each.model_copy(update={"pipeline": each.pipeline.model_copy(update={"stages": stages})})
        for each in (packed, short)
    )

    found = seconds_by_microbatch(padded, Op.B)
    assert found[0] == pytest.approx(seconds_by_microbatch(packed, Op.B)[0], rel=1e-6)
    assert found[1] == pytest.approx(seconds_by_microbatch(short, Op.B)[0], rel=1e-6)
    assert found[0] < found[2]


def test_exchanges_of_experts_are_as_long_as_the_documents() -> None:
    design = padded_design(LENGTHS, dp=2, moe={**MOE, "every": 1, "capacity_factor": 1.0})
    design = design.model_copy(update={"experts": design.experts.model_copy(update={"ep": 2})})
    found = seconds_by_microbatch(design, Op.F, 0)
    assert found[0] == found[3]
    assert found[2] < found[1] < 0.5 * found[0]


def test_short_microbatches_shorten_the_step_and_the_waits_of_dry_runs() -> None:
    design = padded_design(LENGTHS)
    found, full = predict(design), predict(padded_design(None))
    assert found.timeline.makespan < 0.85 * full.timeline.makespan
    waits = plan_waits(found.program, found.costs, 1000.0)
    rows = np.flatnonzero((found.program.op == Op.F) & (found.program.stage == 0))
    expected = [1000.0 * each for each in seconds_by_microbatch(design, Op.F)]
    np.testing.assert_allclose(waits.ns[rows[np.argsort(found.program.microbatch[rows])]] / 1e9, expected, rtol=1e-6)
