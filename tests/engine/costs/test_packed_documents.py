"""The cost of attention depends on the documents of each microbatch, not on whole sequences."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle, islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwave.engine.costs import estimate
from meshwave.engine.costs.packed_documents import attended_shares, context_imbalance
from meshwave.engine.document import Design, parse_design
from meshwave.engine.lowering.lower import lower
from meshwave.engine.predict.prediction import predict
from meshwave.engine.program.action import Op
from meshwave.engine.runs.dry_run import plan_waits

LENGTHS = [4096, 1024, 1024, 1024, 1024, 2048, 2048, 3000, 96, 1000]
"""Documents of four sequences: 4096; 4 x 1024; 2 x 2048; 3000 + 96 + 1000."""


def packed_design(
    lengths: list[int] | None, *, dp: int = 1, tp: int = 1, cp: int = 1, rows: int = 1, **model: Any
) -> Design:
    link = {"latency_s": 1e-6, "bandwidth": 3e11}
    device = {"peak_flops": 3e14, "memory_bytes": 8e10, "memory_bandwidth": 2e12}
    sizes = {"kind": "gpt", "layers": 4, "hidden": 1024, "heads": 8, "sequence": 4096, "vocab": 50000, **model}
    size, axes = dp * cp * tp, {"dp": dp, "cp": cp, "tp": tp}
    return parse_design(
        {
            "format": "meshwave/1",
            "cluster": {
                "nodes": 1, "devices_per_node": 2 * size, "device": device, "intra_node": link, "inter_node": link,
            },
            "model": sizes,
            "meshes": [
                {"name": name, "devices": [*range(first, first + size)], "axes": axes}
                for name, first in (("A", 0), ("B", size))
            ],
            "pipeline": {"schedule": "1f1b", "microbatches": 4},
            "training": {"document_end": 0, "document_lengths": lengths, "micro_batch_size": rows},
            "cost": {"kind": "roofline"},
        }
    )  # fmt: skip


def seconds_by_microbatch(design: Design, op: Op, stage: int = 0) -> list[float]:
    program = lower(design)
    rows = np.flatnonzero((program.op == op) & (program.stage == stage))
    return [float(each) for each in estimate(design, program).seconds[rows[np.argsort(program.microbatch[rows])]]]


def test_shares_are_the_sums_of_the_squares_of_the_lengths() -> None:
    expected = [1.0, 4 * (1 / 4) ** 2, 2 * (1 / 2) ** 2, (3000**2 + 96**2 + 1000**2) / 4096**2]
    np.testing.assert_allclose(attended_shares(packed_design(LENGTHS)), expected)


@given(
    lengths=st.lists(st.integers(1, 9000), min_size=1, max_size=6),
    window=st.none() | st.integers(1, 5000),
)
def test_shares_are_those_of_documents_that_are_packed_one_by_one(lengths: list[int], window: int | None) -> None:
    model = {"kind": "transformer", "attention": {"window": window, "full_every": 2}}
    sequences = islice(sequences_of(lengths, 4096), 4)
    expected = [
        sum(size**2 + windowed_pairs(size, window or size) for size in each) / 2 / 4096**2 for each in sequences
    ]

    np.testing.assert_allclose(attended_shares(packed_design(lengths, **model)), expected, rtol=1e-9)


@pytest.mark.parametrize("pads", [False, True])
def test_more_buckets_than_microbatches_leave_the_prices_of_documents(pads: bool) -> None:
    """A reduction has its bucket in the column of microbatches."""
    document = packed_design([3000, 96, 1000, 4096], dp=2).model_dump()
    document["pipeline"]["microbatches"] = 2
    document["training"] |= {"pad_documents": pads, "gradient_buckets": 5}
    whole, divided = (
        parse_design({**document, "training": {**document["training"], "gradient_buckets": count}}) for count in (1, 5)
    )
    program = lower(divided)

    found = estimate(divided, program).seconds[program.is_compute]

    assert program.bucket.max() >= program.microbatches == 2
    before = lower(whole)
    np.testing.assert_array_equal(found, estimate(whole, before).seconds[before.is_compute])


def test_the_replica_with_the_most_attention_determines_the_time() -> None:
    """The first replica has the four sequences of the list, the second one has one document per sequence."""
    np.testing.assert_allclose(attended_shares(packed_design([*LENGTHS, *[4096] * 4], dp=2)), [1, 1, 1, 1])


def test_a_window_limits_attention_inside_documents() -> None:
    window = {"kind": "transformer", "attention": {"window": 1000}}
    found = attended_shares(packed_design(LENGTHS, **window))
    whole, quarter, half, *last = (windowed_pairs(size, 1000) / 4096**2 for size in (4096, 1024, 2048, 3000, 96, 1000))
    np.testing.assert_allclose(found, [whole, 4 * quarter, 2 * half, sum(last)])


def windowed_pairs(size: int, window: int) -> float:
    """Return twice the area of a causal window: a triangle of the first tokens and a band of the others."""
    first = min(size, window)
    return first**2 + 2 * (size - first) * window


def sequences_of(lengths: list[int], size: int) -> Iterator[list[int]]:
    """Yield the list of documents of each sequence."""
    documents = cycle(lengths)
    left = next(documents)
    while True:
        sequence, room = list[int](), size
        while room:
            sequence.append(min(left, room))
            left, room = left - sequence[-1] or next(documents), room - sequence[-1]
        yield sequence


@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    cp=st.sampled_from([2, 3]),
    rows=st.integers(1, 2),
    is_causal=st.booleans(),
)
def test_the_device_with_the_most_pairs_of_queries_and_keys_determines_the_time_of_context_parallelism(
    lengths: list[int], cp: int, rows: int, is_causal: bool
) -> None:
    """A causal query counts twice its keys less one, so a document counts as the square of its length."""
    design = packed_design(lengths, cp=cp, rows=rows, sequence=24, kind="gpt" if is_causal else "bert", vocab=257)
    sequences, size, expected = sequences_of(lengths, 24), 24 // (2 * cp), []
    for _ in range(4):
        by_device = np.zeros(cp)
        for sequence in (next(sequences) for _ in range(rows)):
            seen = [2 * place + 1 if is_causal else length for length in sequence for place in range(length)]
            chunks = np.reshape(seen, (2 * cp, size)).sum(axis=1)
            by_device += (chunks + chunks[::-1])[:cp]
        expected.append(by_device.max() / (rows * 24 / cp * 24))

    np.testing.assert_allclose(attended_shares(design, design.meshes[0]), expected)


def test_context_parallelism_divides_one_document_equally_and_short_ones_not() -> None:
    """The four chunks of the second sequence have 1, 3, 5 and 1 parts of the pairs; one device has the two middle
    chunks.
    """
    whole, divided = packed_design([4096], cp=2), packed_design([3072, 1024], cp=2)
    assert context_imbalance(whole, whole.meshes[0]) == 1
    assert context_imbalance(divided, divided.meshes[0]) == pytest.approx((3 + 5) / (10 / 2))
    assert [problem.code for problem in predict(divided).warnings] == ["context_imbalance"]
    assert predict(whole).warnings == []


def test_microbatches_take_the_time_of_their_slowest_device() -> None:
    """Attention alone differs: with one sequence per microbatch, the shares are those of the slowest device of each."""
    design = packed_design(LENGTHS, cp=2)
    shares = attended_shares(design, design.meshes[0])
    assert shares is not None
    found = np.array(seconds_by_microbatch(design, Op.F))
    slope = (found[0] - found[1]) / (shares[0] - shares[1])
    np.testing.assert_allclose(found, found[0] + slope * (shares - shares[0]))
    assert slope > 0


@pytest.mark.parametrize("tp", [1, 2])
def test_each_microbatch_takes_as_long_as_if_all_had_its_documents(tp: int) -> None:
    documents = [LENGTHS[:1], LENGTHS[1:5], LENGTHS[5:7], LENGTHS[7:]]
    for op in (Op.F, Op.B):
        found = seconds_by_microbatch(packed_design(LENGTHS, tp=tp), op)
        alone = [seconds_by_microbatch(packed_design(each, tp=tp), op)[0] for each in documents]
        np.testing.assert_allclose(found, alone, rtol=1e-3)  # short documents are not exactly linear
        assert found[0] > found[3] > found[2] > found[1]


def test_dry_runs_wait_for_the_documents_of_each_microbatch() -> None:
    design = packed_design(LENGTHS)
    program = lower(design)
    waits = plan_waits(program, estimate(design, program), 1000.0)

    rows = np.flatnonzero((program.op == Op.F) & (program.stage == 0))
    expected = [1000.0 * each for each in seconds_by_microbatch(design, Op.F)]
    np.testing.assert_allclose(waits.ns[rows[np.argsort(program.microbatch[rows])]] / 1e9, expected, rtol=1e-6)


def test_sequences_of_one_document_cost_what_they_cost_without_documents() -> None:
    plain, whole = packed_design(None), packed_design([4096])
    assert seconds_by_microbatch(whole, Op.B) == seconds_by_microbatch(plain, Op.B)
