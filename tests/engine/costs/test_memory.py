"""Memory: the closed forms of the schedules, and the same peaks over time and over order."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwave.engine.costs import estimate, memory_over_time, peak_inflight, peak_memory
from meshwave.engine.costs.flops import activation_bytes, copied_parameters, stage_parameters
from meshwave.engine.costs.operators import Workload
from meshwave.engine.document import Design, parse_design
from meshwave.engine.lowering.lower import lower
from meshwave.engine.predict.prediction import predict
from meshwave.engine.program.program import Program, parse_program
from meshwave.engine.program.simulation import simulate
from meshwave.engine.schedules import Pipe, schedules
from tests._strategies import document

sizes = st.integers(1, 6), st.integers(1, 12)


def program(name: str, ranks: int, microbatches: int, **options: int) -> Program:
    return schedules[name](**options).program(Pipe(ranks, microbatches))


@given(*sizes)
def test_gpipe_keeps_every_microbatch(ranks: int, microbatches: int) -> None:
    assert peak_inflight(program("gpipe", ranks, microbatches)).tolist() == [microbatches] * ranks


@given(*sizes)
def test_1f1b_keeps_p_minus_r_activations_on_rank_r(ranks: int, microbatches: int) -> None:
    expected = [min(microbatches, ranks - rank) for rank in range(ranks)]

    assert peak_inflight(program("1f1b", ranks, microbatches)).tolist() == expected


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("waves", [1, 2, 4])
def test_hanayo_keeps_the_activations_of_its_paper(ranks: int, waves: int) -> None:
    """((2W-1)P + 1 + r) stages on rank r: from ((2W-1)P+1)/2W shares on the first to P on the last."""
    expected = [((2 * waves - 1) * ranks + 1 + rank) / (2 * waves) for rank in range(ranks)]

    assert peak_inflight(program("hanayo", ranks, ranks, waves=waves)) == pytest.approx(expected)


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_chimera_keeps_half_of_the_activations_on_outer_ranks(ranks: int) -> None:
    expected = [ranks // 2 + 1 + min(rank, ranks - 1 - rank) for rank in range(ranks)]

    assert peak_inflight(program("chimera", ranks, ranks)).tolist() == expected


def test_a_split_backward_frees_activations_at_its_weight_gradient() -> None:
    split = parse_program("0F0 0F1 0I0 0I1 0F2 0W0 0W1 0I2 0W2")

    assert peak_inflight(split).tolist() == [3]


def test_a_stage_counts_by_its_layers() -> None:
    two = parse_program("0F0 0F1 0B0 0B1\n1F0 1B0 1F1 1B1")

    assert peak_inflight(two, layers=(1, 3)).tolist() == [1.0, 1.5]


def test_a_rank_without_actions_keeps_nothing() -> None:
    idle = parse_program([["0F0", "0B0"], []])

    assert peak_inflight(idle)[1] == 0


def test_the_peak_is_the_sum_of_its_categories(design: Callable[..., Design]) -> None:
    made = design(2, model={"layers": 8}, pipeline={"stages": [4, 4]}, training={"precision": "bf16"})
    lowered = lower(made)
    costs = estimate(made, lowered)
    peak = peak_memory(lowered, costs)
    load = Workload.from_model(made.model, batch=1, precision="bf16")
    first = stage_parameters(load, 4, first=True, last=False)
    copied = copied_parameters(load, 4, first=True, last=False)

    assert peak.by_category["weights"][0] == 4 * first + 2 * copied
    assert peak.by_category["gradients"][0] == 4 * first
    assert peak.by_category["optimizer"][0] == 8 * first
    assert peak.by_category["activations"][0] == 2 * activation_bytes(load, 4, first=True, last=False)
    assert peak.by_category["activations"][1] == activation_bytes(load, 4, first=False, last=True)
    assert peak.total_bytes == pytest.approx(sum(peak.by_category.values()))
    assert peak.fits.all()


def test_working_memory_includes_posted_receives_and_an_outgoing_message(design: Callable[..., Design]) -> None:
    alone, many = (design(ranks, microbatches=8, model={"layers": 8}) for ranks in (1, 4))
    message = 32 * 64 * 4
    working = [estimate(made, lower(made)).working_bytes for made in (alone, many)]
    logits = 4 * (64 * 300 + 32 * (64 + 300))  # the weight's gradient, and both sides'

    assert working[0] == pytest.approx(logits)
    assert working[1][3] == pytest.approx(logits + 3 * message)  # two receives ahead, one gradient out


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "chimera", "hanayo", "interleaved-1f1b"])
@pytest.mark.parametrize("cost", [{"kind": "unit"}, {"kind": "roofline"}])
def test_the_peak_over_time_is_the_peak_over_the_order(
    design: Callable[..., Design], schedule: str, cost: dict[str, str]
) -> None:
    made = design(4, schedule=schedule, microbatches=8, cost=cost)
    lowered = lower(made)
    costs = estimate(made, lowered)
    timeline = simulate(lowered, costs.seconds, costs.transfer_model)

    over_time = memory_over_time(timeline, costs)

    assert [held.max() for _, held in over_time] == pytest.approx(peak_memory(lowered, costs).total_bytes)
    for rank, (times, held) in enumerate(over_time):
        assert times[0] == 0.0
        assert all(a <= b for a, b in pairwise(times))
        idle = sum(costs.static_bytes[kind][rank] for kind in ("weights", "optimizer")) + costs.working_bytes[rank]
        assert held[0] == held[-1] == pytest.approx(idle)  # all that came has gone


def test_a_recorded_timeline_may_have_its_spans_in_any_order(design: Callable[..., Design]) -> None:
    made = design(3, microbatches=6)
    lowered = lower(made)
    costs = estimate(made, lowered)
    timeline = simulate(lowered, costs.seconds, costs.transfer_model)
    shuffled = np.random.default_rng(0).permutation(len(timeline))
    columns = ("rank", "peer", "op", "stage", "microbatch", "start", "end", "cause")
    mixed = replace(timeline, **{name: getattr(timeline, name)[shuffled] for name in columns})

    for (times, held), (mixed_times, mixed_held) in zip(
        memory_over_time(timeline, costs), memory_over_time(mixed, costs), strict=True
    ):
        assert times.tolist() == mixed_times.tolist()
        assert held[-1] == mixed_held[-1]


def test_a_peak_above_the_capacity_is_reported(design: Callable[..., Design]) -> None:
    made = design(2, model={"layers": 40, "hidden": 8192, "heads": 64}, pipeline={"stages": [1, 39]})
    lowered = lower(made)

    assert peak_memory(lowered, estimate(made, lowered)).fits.tolist() == [True, False]


def test_a_split_backward_keeps_inputs_until_the_weight_gradients() -> None:
    """F F I I W W: two activations, then the tensors that two weight gradients need."""
    drawn = parse_design(
        document({"schedule": "custom", "microbatches": 2, "actions": [["0F0", "0F1", "0I0", "0I1", "0W0", "0W1"]]}, 1)
    )
    predicted = predict(drawn)
    kept, needed = predicted.costs.activation_bytes[0], predicted.costs.deferred_bytes[0]

    gradients = predicted.costs.gradient_bytes[0, 0]
    _, alive = predicted.memory_curves[0]

    assert needed > kept
    backward = [needed - kept, needed - kept, gradients - needed, -needed]
    assert np.diff(alive).tolist() == [kept, kept, *backward, 0, -gradients]


def test_gradients_are_allocated_from_the_first_backward_on(design: Callable[..., Design]) -> None:
    """With GPipe, gradients are allocated when the first activations are freed, so they never coexist with all
    activations.
    """
    gpipe, one = (
        predict(design(2, schedule=name, microbatches=6, training={"micro_batch_size": 8}))
        for name in ("gpipe", "1f1b")
    )

    assert gpipe.memory.by_category["gradients"].tolist() == [0, 0]
    assert one.memory.by_category["gradients"] == pytest.approx(one.costs.gradient_bytes.sum(axis=1))


def test_reduced_gradients_are_allocated_twice_at_the_end(design: Callable[..., Design]) -> None:
    small = {"layers": 4, "sequence": 4, "vocab": 256, "hidden": 256}
    alone, shared = (predict(design(2, microbatches=2, model=small, meshes=meshes(lanes))) for lanes in (1, 2))

    once, twice = (each.memory.by_category["gradients"][0] for each in (alone, shared))
    assert once == alone.costs.gradient_bytes[0].sum()
    assert twice == 2 * once
    assert shared.memory.by_category["activations"][0] == 0


def meshes(lanes: int) -> list[dict[str, object]]:
    return [
        {"name": n, "devices": [lanes * r + d for d in range(lanes)], "axes": {"dp": lanes}} for r, n in enumerate("AB")
    ]


def test_sent_tensors_are_kept_until_their_acknowledgement(design: Callable[..., Design]) -> None:
    few, many = (predict(design(2, schedule="1f1b", microbatches=count)) for count in (4, 12))
    assert many.memory.total_bytes.tolist() == few.memory.total_bytes.tolist()

    gpipe, message = predict(design(2, schedule="gpipe", microbatches=6)).costs, 32 * 64 * 4
    forward, backward = gpipe.sent_bytes
    assert forward.tolist() == [[message] * 6, [0] * 6]
    assert backward.tolist() == [[-6 * message] + [0] * 5, [message] * 6], "the first gradient proves all forwards"
