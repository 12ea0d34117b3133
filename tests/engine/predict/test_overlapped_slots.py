"""A forward and a backward in a shared slot take less than their sum if one computes while the other waits."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwave.engine.costs.overlapped_slots import (
    Piece,
    Pieces,
    join_pieces,
    overlapped_seconds,
    place_overlapped_pieces,
)
from meshwave.engine.costs.profile_store import store_profile
from meshwave.engine.document import parse_design
from meshwave.engine.predict.prediction import Prediction, predict
from meshwave.engine.predict.slot_timeline import predict_action, slot_actions
from meshwave.engine.program.action import Op
from tests.engine.costs.profiles import example_profile

MOE = {"experts": 8, "top_k": 2, "capacity_factor": 1.25, "every": 1}
times = st.floats(0, 4)
pieces = st.lists(st.builds(Piece, times, times), max_size=6).map(join_pieces)


def case(schedule: str = "dualpipe", dp: int = 2, tp: int = 1, bandwidth: float = 1e9, **sections: Any) -> Prediction:
    """Return a design whose meshes span two nodes each, so that experts exchange tokens over the NICs."""
    meshes, size = 4, dp * tp
    devices = np.arange(meshes * size).reshape(2, meshes, size // 2).swapaxes(0, 1).reshape(meshes, size)
    document = {
        "format": "meshwave/1",
        "cluster": {
            "nodes": 2,
            "devices_per_node": meshes * size // 2,
            "device": {"peak_flops": 1e12, "memory_bytes": 8e10, "memory_bandwidth": 1e12},
            "intra_node": {"latency_s": 1e-6, "bandwidth": 1e11},
            "inter_node": {"latency_s": 1e-6, "bandwidth": bandwidth},
        },
        "model": {"kind": "gpt", "layers": 8, "hidden": 256, "heads": 4, "sequence": 256, "vocab": 257, "moe": MOE},
        "meshes": [
            {"name": f"m{rank}", "devices": own.tolist(), "axes": {"dp": dp, "tp": tp}}
            for rank, own in enumerate(devices)
        ],
        "pipeline": {"schedule": schedule, "microbatches": 16},
        "experts": {"schedule": "expert-parallel", "ep": dp * tp},
        "training": {"micro_batch_size": 1},
        **sections,
    }
    return predict(parse_design(document))


def without_overlap(prediction: Prediction) -> Prediction:
    document = json.loads(prediction.design.to_json()) | {"cost": {"kind": "roofline", "overlap": 0.0}}
    return predict(parse_design(document))


def slots_of(prediction: Prediction) -> tuple[np.ndarray, np.ndarray]:
    """Return the seconds of the shared slots, and of their actions one after the other."""
    program, seconds = prediction.program, prediction.costs.seconds
    second = np.flatnonzero(program.fused)
    alone = without_overlap(prediction).costs.seconds
    return seconds[second - 1] + seconds[second], alone[second - 1] + alone[second]


@given(pieces, pieces)
def test_a_slot_is_bounded_by_its_resources_and_by_both_actions_in_turn(first: Pieces, second: Pieces) -> None:
    found = overlapped_seconds(first, second)
    compute, waits = (sum(each) for each in zip(*first, *second, strict=True))
    assert max(compute, waits, sum(map(sum, first)), sum(map(sum, second))) <= found + 1e-9
    assert found <= compute + waits + 1e-9
    assert overlapped_seconds(first, (Piece(0.0),)) == pytest.approx(sum(map(sum, first)))


def test_the_turn_passes_at_each_wait() -> None:
    """F computes 2 and waits 3, twice; B computes 4 and waits 1, then 1 and ends."""
    first, second = place_overlapped_pieces((Piece(2, 3), Piece(2, 3), Piece(0)), (Piece(4, 1), Piece(1)))
    assert first == [(0, 2, 5), (6, 9 - 1, 11), (11, 11, 11)]
    assert second == [(2, 6, 7), (8, 9, 9)]


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"tp": 2}, {"schedule": "dualpipe-v"}], ids=str)
def test_overlap_hides_exchanges_and_no_slot_is_shorter_than_its_compute(options: Any) -> None:
    found = case(**options)
    slots, in_turn = slots_of(found)
    free = slots_of(case(**options, bandwidth=1e24))[1]
    assert (slots < 0.99 * in_turn).any() and (slots <= in_turn + 1e-12).all()
    assert (slots >= free - 1e-9).all(), "without bytes to exchange, what is left is compute"
    saved = found.numbers["overlap_saved_s"]
    assert sum(saved) == pytest.approx((in_turn - slots).sum())
    assert found.timeline.makespan < without_overlap(found).timeline.makespan


def test_measured_blocks_overlap() -> None:
    store_profile(example_profile(), "slots-test.json")
    found = case(cost={"kind": "calibrated", "profile": "slots-test.json", "links": "drawn"})
    alone = found.costs.seconds + found.costs.overlap_saved
    second = np.flatnonzero(found.program.fused)
    slots = (found.costs.seconds[second - 1] + found.costs.seconds[second]).round(12)
    longest = np.maximum(alone[second - 1], alone[second]).round(12)
    assert (found.costs.overlap_saved[second] > 0).any()
    assert (slots >= longest).all()
    assert min(found.numbers["inside_communication_s"]) >= 0


def test_actions_that_gather_their_own_weights_run_one_after_the_other() -> None:
    training = {"micro_batch_size": 1, "sharding": "parameters", "unsharded_stages": 0}
    found = case("dualpipe-v", training=training)
    slots, in_turn = slots_of(found)
    assert slots == pytest.approx(in_turn)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"tp": 2}, {"schedule": "dualpipe-v"}], ids=str)
def test_the_actions_of_a_slot_end_with_it_and_compute_one_at_a_time(options: Any) -> None:
    found = case(**options)
    program, seconds = found.program, found.costs.seconds
    for row in np.flatnonzero(program.fused)[:12].tolist():
        rank, action = int(program.rank[row]), program.row(row)
        inside = predict_action(found, rank, action)
        timeline = inside.timeline
        assert timeline.makespan == pytest.approx(seconds[row - 1] + seconds[row], rel=1e-6)
        for lane in range(len(inside.lanes)):
            own = np.flatnonzero(timeline.rank == lane)
            order = own[np.argsort(timeline.start[own], kind="stable")]
            assert (timeline.start[order][1:] >= timeline.end[order][:-1] - 1e-9 * timeline.makespan).all()
        causes = timeline.cause >= 0
        assert (timeline.end[timeline.cause[causes]] <= timeline.start[causes] + 1e-9).all()
        other = next(each for each in slot_actions(program, rank, action) if each.op == Op.F)
        assert any(label.endswith(f" of {other}") for label in inside.labels)
