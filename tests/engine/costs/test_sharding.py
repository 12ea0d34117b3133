"""Sharded state and sequence parallelism against the numbers of the papers and hand calculations."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from meshwave.engine.costs import stage_memory, transformer_layers
from meshwave.engine.costs.cost_model import Costs, estimate
from meshwave.engine.costs.device_sizes import device_workload
from meshwave.engine.costs.flops import activation_bytes
from meshwave.engine.costs.memory import peak_memory
from meshwave.engine.costs.sharding import BlockTimes, Exposed, exposed_seconds, state_bytes, waiting_seconds
from meshwave.engine.document import Design
from meshwave.engine.document.devices import find_device_kind
from meshwave.engine.document.problems import problems
from meshwave.engine.document.training import Training
from meshwave.engine.document.unsupported import run_problems
from meshwave.engine.findings import DesignError
from meshwave.engine.lowering.lower import lower
from meshwave.engine.program.action import Op
from meshwave.engine.program.program import Program

LARGE = {"layers": 32, "hidden": 4096, "heads": 32, "sequence": 2048, "vocab": 51200}
BF16 = {"precision": "bf16", "bf16_gradients": True}


def program_and_costs(design: Design) -> tuple[Program, Costs]:
    program = lower(design)
    return program, estimate(design, program)


def seconds_of(priced: tuple[Program, Costs], op: Op) -> float:
    """Return the cost of the first row of an op."""
    program, costs = priced
    return float(costs.seconds[np.flatnonzero(program.op == op)[0]])


@pytest.mark.parametrize(
    ("sharding", "gigabytes"), [("none", 120.0), ("optimizer", 31.4), ("gradients", 16.6), ("parameters", 1.9)]
)
def test_state_takes_the_memory_of_the_zero_paper(sharding: Any, gigabytes: float) -> None:
    """Rajbhandari et al., arXiv:1910.02054, figure 1: 7.5 billion parameters on 64 GPUs with Adam, in 16 bits."""
    own = 7.5e9 if sharding == "none" else 7.5e9 / 64
    found = state_bytes(Training(sharding=sharding, **BF16), 7.5e9, 7.5e9, own, own)

    assert sum(found) / 1e9 == pytest.approx(gigabytes, abs=0.05)


@pytest.mark.parametrize("sharding", ["optimizer", "gradients", "parameters"])
def test_a_mesh_divides_its_state_over_its_data_parallel_copies(design: Callable[..., Design], sharding: str) -> None:
    whole, cut = (
        program_and_costs(design(2, dp=8, model=LARGE, training={"sharding": each}))[1].static_bytes
        for each in ("none", sharding)
    )
    expected = {"optimizer": (1, 1, 8), "gradients": (1, 8, 8), "parameters": (8, 8, 8)}[sharding]

    for name, share in zip(("weights", "gradients", "optimizer"), expected, strict=True):
        np.testing.assert_allclose(cut[name] * share, whole[name])


def test_sharded_optimizer_states_replace_an_all_reduce_by_its_halves(design: Callable[..., Design]) -> None:
    whole, cut = (
        program_and_costs(design(1, dp=8, model=LARGE, training={"sharding": each})) for each in ("none", "optimizer")
    )
    reduced, parameters = seconds_of(whole, Op.REDUCE_GRAD), whole[1].static_bytes["weights"][0] / 4
    update = 28 * parameters / 2e12  # AdamW moves 28 bytes per parameter in fp32

    assert seconds_of(cut, Op.REDUCE_GRAD) == pytest.approx(reduced / 2)
    assert seconds_of(cut, Op.STEP) == pytest.approx(update / 8 + reduced / 2)


def test_sharded_gradients_are_scattered_by_every_microbatch(design: Callable[..., Design]) -> None:
    made = design(2, dp=8, model=LARGE, training={"sharding": "gradients"})
    program = lower(made)

    assert not (program.op == Op.REDUCE_GRAD).any()


@pytest.mark.parametrize("sharding", ["gradients", "parameters"])
def test_gradients_that_are_reduced_once_take_a_reduce_scatter_and_whole_gradients(
    sharding: str, design: Callable[..., Design]
) -> None:
    training = {"sharding": sharding, "unsharded_stages": 3 if sharding == "parameters" else None}
    made = {
        how: design(2, dp=8, model=LARGE, training={**training, "gradient_reduction": how})
        for how in ("microbatch", "step")
    }
    every, once = (program_and_costs(each) for each in made.values())
    states = program_and_costs(design(2, dp=8, model=LARGE, training={"sharding": "optimizer"}))
    memory = [peak_memory(*each).by_category["gradients"] for each in (every, once)]

    assert seconds_of(once, Op.REDUCE_GRAD) == pytest.approx(seconds_of(states, Op.REDUCE_GRAD))
    assert seconds_of(once, Op.B) < seconds_of(every, Op.B), "no block waits for its reduce-scatter"
    assert (memory[1] > 7 * memory[0]).all()


def test_compute_hides_the_collectives_of_its_neighbours() -> None:
    """There are three blocks; the compute of the first is too short to hide the gather of the second."""
    blocks = [BlockTimes(1, 1.0, 1.0, 1.0, 3.0, 3.0), BlockTimes(2, 5.0, 5.0, 5.0, 4.0, 4.0)]
    found = exposed_seconds(blocks)

    assert found.forward == 3.0 + (4.0 - 1.0)
    assert found.input_gradient == 4.0
    assert found.weight_gradient == 4.0 + (3.0 + 4.0 - 5.0) + (4.0 - 1.0) + 3.0
    assert found.backward == 4.0 + (4.0 - 2.0) + 3.0


def test_only_a_share_of_the_compute_hides_collectives_on_devices_with_constants() -> None:
    blocks = [BlockTimes(2, 5.0, 5.0, 5.0, 4.0, 4.0)]

    assert exposed_seconds(blocks, overlap=0.5).forward == 4.0 + (4.0 - 0.5 * 5.0)
    assert exposed_seconds(blocks, overlap=0.0).forward == 2 * 4.0


def test_a_device_that_waits_for_gathers_hides_nothing_and_copies_the_part_of_each_device(
    design: Callable[..., Design],
) -> None:
    """A layer has 4 matrices; its backward gathers them again to recompute, and once more, and scatters gradients."""
    training = {"sharding": "parameters", **BF16}
    device = {"name": "A100-SXM4-80GB", "peak_flops": 312e12, "memory_bytes": 80e9, "memory_bandwidth": 2e12}
    instant = {"latency_s": 0.0, "bandwidth": 1e18}

    def priced(blocking: bool) -> tuple[Program, Costs]:
        return program_and_costs(
            design(
                1,
                dp=8,
                model=LARGE,
                training={**training, "blocking_gathers": blocking},
                cluster={"device": device, "intra_node": instant},
                pipeline={"recompute": "layers"},
            )
        )

    added = [seconds_of(priced(True), op) - seconds_of(priced(False), op) for op in (Op.F, Op.B)]
    constants = find_device_kind("A100-SXM4-80GB").constants
    per_gather = (32 * 4 + 2) * 8 * 2 * constants.kernel_s

    assert added[0] == pytest.approx(per_gather, rel=0.05), "the matrices of layers, the embedding and the head"
    assert added[1] == pytest.approx(3 * per_gather, rel=0.05)


def test_blocking_gathers_without_gathers_are_reported(design: Callable[..., Design]) -> None:
    settings = ({"sharding": "parameters"}, {"sharding": "parameters", "unsharded_stages": 1}, {"sharding": "none"})
    found = [problems(design(1, dp=8, training={**each, "blocking_gathers": True})) for each in settings]

    assert [[each.code for each in some] for some in found] == [[], *[["unused_blocking_gathers"]] * 2]


def test_a_separate_weight_gradient_waits_for_a_gather_of_its_own() -> None:
    found = waiting_seconds([BlockTimes(2, 1.0, 1.0, 1.0, 3.0, 5.0)], recomputes=True)

    assert found == Exposed(forward=6.0, input_gradient=12.0, weight_gradient=6.0 + 10.0, backward=12.0 + 10.0)


def test_slow_links_expose_the_gathers_of_sharded_parameters(design: Callable[..., Design]) -> None:
    fast, slow = (
        program_and_costs(
            design(1, dp=8, model=LARGE, training={"sharding": "parameters", **BF16}, cluster={"intra_node": link})
        )
        for link in ({"latency_s": 0.0, "bandwidth": 1e15}, {"latency_s": 0.0, "bandwidth": 1e6})
    )
    replicated = program_and_costs(
        design(1, dp=8, model=LARGE, training=BF16, cluster={"intra_node": {"latency_s": 0.0, "bandwidth": 1e6}})
    )
    load = device_workload(design(1, dp=8, model=LARGE, training=BF16), design(1, dp=8).meshes[0])
    size = stage_memory.sum_over_stage(
        lambda each: load.precision.computed_bytes(each.parameters, each.copied),
        load,
        32,
        True,
        True,
        (),
    )

    assert seconds_of(fast, Op.F) == pytest.approx(seconds_of(replicated, Op.F), rel=1e-3)
    assert seconds_of(slow, Op.F) == pytest.approx(size * 7 / 8 / 1e6, rel=1e-3)


def test_a_stage_with_sharded_parameters_holds_two_gathered_blocks(design: Callable[..., Design]) -> None:
    shape = {**LARGE, "vocab": 300, "sequence": 64}
    whole, cut = (
        program_and_costs(design(1, dp=8, model=shape, training={"sharding": each, **BF16}))
        for each in ("none", "parameters")
    )
    block = 12 * 4096**2 + 13 * 4096
    norms = 4 * 4096

    extra = cut[1].working_bytes - whole[1].working_bytes
    assert extra[0] == pytest.approx(2 * (2 * block + 2 * norms) + 2 * 2 * block)


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_sequence_parallelism_divides_all_activations_of_a_layer(design: Callable[..., Design], tp: int) -> None:
    """Korthikanti et al., arXiv:2205.05198, eq. 2 and 4, without dropout masks (2sbh) and without the s^2 part (5as/h)."""
    unit = 2048 * 4096
    for sequence_parallel, expected in ((False, 8 + 24 / tp), (True, 32 / tp)):
        training = {"precision": "bf16", "sequence_parallel": sequence_parallel}
        made = design(1, tp=tp, model=LARGE, training=training)
        load = device_workload(made, made.meshes[0])
        one, two = (activation_bytes(load, layers, first=False, last=True) for layers in (1, 2))
        statistics = (4 * 4 / (tp if sequence_parallel else 1) + 4 * 32 / tp) * 2048

        assert two - one == pytest.approx(expected * unit + statistics)


def test_sequence_parallelism_sends_as_much_as_tensor_parallelism_and_gathers_inputs_again(
    design: Callable[..., Design],
) -> None:
    """Korthikanti et al., section 4.2.2: a layer all-gathers and reduce-scatters twice instead of two all-reduces."""
    size = 2048 * 4096 * 2
    made = design(1, tp=8, model=LARGE, training={"precision": "bf16", "sequence_parallel": True})
    layer = transformer_layers.layer_operators(device_workload(made, made.meshes[0]))

    assert [each for operator in layer for each in operator.forward_gathered] == [size] * 4
    assert [each for operator in layer for each in operator.backward_gathered] == [size] * 6
    assert not any(operator.forward_reduced or operator.backward_reduced for operator in layer)


def test_sequence_parallelism_sends_each_slice_once_between_meshes(design: Callable[..., Design]) -> None:
    plain, cut = (
        program_and_costs(design(2, tp=8, model=LARGE, training={"precision": "bf16", "sequence_parallel": each}))
        for each in (False, True)
    )
    message = 2048 * 4096 * 2

    def sent_bytes_of(found: tuple[Program, Costs]) -> set[float]:
        return set(found[1].bytes[found[0].op == Op.SEND_F].tolist())

    assert sent_bytes_of(plain) == {message}
    assert sent_bytes_of(cut) == {message / 8}


def test_sharding_lowers_the_peak(design: Callable[..., Design]) -> None:
    peaks = [
        float(peak_memory(*program_and_costs(design(1, dp=8, model=LARGE, training={"sharding": each}))).total_bytes[0])
        for each in ("none", "optimizer", "gradients", "parameters")
    ]

    assert peaks == sorted(peaks, reverse=True)
    assert len(set(peaks)) == 4


def test_a_run_refuses_what_it_cannot_train(design: Callable[..., Design]) -> None:
    plain = design(2, dp=2, training=BF16)
    uneven = design(1, tp=4, model={"sequence": 34}, training={"sequence_parallel": True})

    assert [(each.code, each.where) for made in (plain, uneven) for each in run_problems(made)] == [
        ("unsupported_training", "training.bf16_gradients"),
        ("indivisible_sequence", "meshes[0].axes.tp"),
    ]


def test_gradients_are_not_sharded_where_a_schedule_replicates_stages(design: Callable[..., Design]) -> None:
    with pytest.raises(DesignError) as refused:
        design(2, dp=2, schedule="chimera", training={"sharding": "gradients"})

    assert [each.code for each in refused.value.problems] == ["sharded_replicas"]


def test_a_tied_head_runs_with_equal_shards_and_copies(design: Callable[..., Design]) -> None:
    model = {"kind": "transformer", "tied_embeddings": True}
    copies = [{"name": "A", "devices": [0, 1], "axes": {"dp": 2}}, {"name": "B", "devices": [2]}]
    plain = design(2, tp=2, model=model, training={"sharding": "optimizer"})
    sharded = design(2, model=model, meshes=copies, training={"sharding": "parameters"})
    program_and_costs(sharded)
    meshes = [{"name": "A", "devices": [0, 1], "axes": {"tp": 2}}, {"name": "B", "devices": [2]}]
    unequal = design(2, model=model, meshes=meshes)

    assert [each.code for made in (plain, sharded, unequal) for each in run_problems(made)] == [
        "tied_sharding",
        "unequal_tied_meshes",
    ]


def test_a_step_sums_the_gradients_of_a_table_on_two_stages(design: Callable[..., Design]) -> None:
    """A ring of two devices passes all bytes once in each direction."""
    untied, tied = (
        program_and_costs(design(2, model={**LARGE, "kind": "transformer", "tied_embeddings": each}))
        for each in (False, True)
    )
    table = 4 * 4096 * 51200

    assert seconds_of(tied, Op.STEP) - seconds_of(untied, Op.STEP) == pytest.approx(2 * 5e-6 + table / 300e9)


def test_the_owners_of_a_part_of_a_table_on_two_stages_sum_its_gradient(design: Callable[..., Design]) -> None:
    model = {**LARGE, "kind": "transformer"}
    untied, tied = (
        program_and_costs(design(2, dp=2, model={**model, "tied_embeddings": each}, training={"sharding": "optimizer"}))
        for each in (False, True)
    )
    part = 4 * 4096 * 51200 / 2

    assert seconds_of(tied, Op.STEP) - seconds_of(untied, Op.STEP) == pytest.approx(2 * 5e-6 + part / 300e9)


@pytest.mark.parametrize(("schedule", "sharding"), [("zb-v", "none"), ("zb-v", "optimizer"), ("chimera", "none")])
def test_two_stages_of_a_device_share_a_tied_table(design: Callable[..., Design], schedule: str, sharding: str) -> None:
    model = {**LARGE, "kind": "transformer"}
    untied, tied = (
        program_and_costs(
            design(2, schedule=schedule, model={**model, "tied_embeddings": each}, training={"sharding": sharding})
        )[1].static_bytes
        for each in (False, True)
    )
    table = 4 * 4096 * 51200

    saved = {name: float((untied[name] - tied[name])[0]) for name in untied}
    assert saved["optimizer"] == 2 * table
    assert saved["weights"] == (table if sharding == "none" else 0.0)


def test_the_copies_of_an_expert_divide_its_state(design: Callable[..., Design]) -> None:
    """Two groups of two devices hold all experts, so each expert is on two devices."""
    model = {"layers": 2, "hidden": 64, "ffn": 256, "moe": {"experts": 4, "every": 1}}
    whole, cut = (
        program_and_costs(design(1, dp=4, model=model, experts={"ep": 2}, training={"sharding": each}))[1].static_bytes
        for each in ("none", "parameters")
    )
    experts = 4 * 2 * 2 * (2 * 64 * 256 + 64 + 256)  # bytes of two experts in each of two layers

    np.testing.assert_allclose(cut["weights"], (whole["weights"] - experts) / 4 + experts / 2)
    np.testing.assert_allclose(cut["gradients"], cut["weights"])
    np.testing.assert_allclose(cut["optimizer"], 2 * cut["weights"])
