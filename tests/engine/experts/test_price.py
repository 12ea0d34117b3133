"""Bytes and seconds of every expert schedule, compared with the formulas of the papers."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import ceil

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from meshwave.engine.experts import (
    Collective,
    Layer,
    Line,
    Links,
    Price,
    Rates,
    StepOp,
    backward_steps,
    balance_experts,
    device_load,
    expert_schedule_names,
    expert_schedules,
    price_expert_schedule,
    simulate_layer,
)
from meshwave.engine.experts._collectives import traffic
from tests._strategies import examples

LINKS = Links(Line(1e-5, 2e-10), Line(3e-5, 8e-10))
STEPPED = [name for name in expert_schedule_names(option=False) if not expert_schedules[name].chooses]


def layer(mp: int, esp: int, ep: int, per_node: int = 4, **changes: object) -> Layer:
    given = {"experts": 2 * ep, "tokens": 96, "hidden": 16, "ffn_hidden": 64, "top_k": 2, "capacity_factor": 1.2}
    nodes = tuple(device // per_node for device in range(ep * esp))
    return Layer(mp=mp, ep=ep, esp=esp, nodes=nodes, **{**given, **changes})  # type: ignore[arg-type]


SIZES = [1, 2, 4, 8]
layouts = st.sampled_from(
    [
        (mp, esp, ep, per_node)
        for mp, esp, ep in product(SIZES, repeat=3)
        for per_node in (4, 8)
        if ep * esp % mp == 0 and max(mp, esp) <= per_node and ep * esp <= 32
    ]
)
numbers = {
    "tokens": st.integers(1, 6).map(lambda n: 8 * n),
    "hidden": st.integers(1, 32),
    "ffn_hidden": st.integers(1, 4).map(lambda n: 8 * n),
    "top_k": st.integers(1, 2),
    "capacity_factor": st.sampled_from([0.5, 1.0, 1.2, 2.4]),
    "item_bytes": st.sampled_from([2, 4]),
}


@st.composite
def layers(draw: st.DrawFn) -> Layer:
    mp, esp, ep, per_node = draw(layouts)
    experts = draw(st.sampled_from([1, 2])) * ep
    drawn = {key: draw(values) for key, values in numbers.items()}
    return layer(mp, esp, ep, per_node, experts=experts, **{**drawn, "top_k": min(drawn["top_k"], experts)})


def assume_it_runs(name: str, of: Layer) -> None:
    """Skip cases that the schedule refuses; plain expert parallelism treats each shard as a device with whole experts."""
    assume(not [problem for problem in expert_schedules[name]().problems(of) if problem.code != "sharded_experts"])


def collectives_of_passes(name: str, of: Layer) -> tuple[list[Collective], list[Collective]]:
    priced = price_expert_schedule(name, of, LINKS)
    return priced.collectives(priced.forward), priced.collectives(priced.backward)


def volumes(collectives: list[Collective]) -> list[tuple[str, str, float]]:
    return [(each.name, each.group, each.buffer_bytes) for each in collectives]


# ---- volumes: the tables of sections 3 to 8 ----


def table(name: str, of: Layer) -> tuple[list[tuple[str, str, float]], list[tuple[str, str, float]]]:
    """Return (collective, group, buffer) of a forward and a backward, without groups of one device."""
    slots = ceil(round(of.top_k * of.tokens * (of.capacity_factor or 0) / of.experts, 9))
    slots = ceil(slots / of.mp) * of.mp
    d = of.experts * slots * of.hidden * of.item_bytes
    x = of.tokens * of.hidden * of.item_bytes
    y, n, mp = of.esp * d / of.mp, of.esp, of.mp
    exchange, fused = ("all_to_all", "ep"), ("all_to_all", "ep_esp")
    ways = {
        "expert-parallel": ([(*exchange, d)] * 2, [(*exchange, d)] * 2),
        "deepspeed": (
            [("all_gather", "esp", d), (*exchange, n * d), ("all_reduce", "esp", n * d), (*exchange, n * d)],
            [(*exchange, n * d), ("all_reduce", "esp", n * d), (*exchange, n * d), ("reduce_scatter", "esp", n * d)],
        ),
        "deepspeed-pregate": (
            [("all_gather", "esp", x), (*exchange, n * d), ("all_reduce", "esp", n * d), (*exchange, n * d)],
            [(*exchange, n * d), ("all_reduce", "esp", n * d), (*exchange, n * d), ("reduce_scatter", "esp", n * x)],
        ),
        "deepspeed-lanes": (
            [(*exchange, d), ("all_reduce", "esp", d), (*exchange, d)],
            [(*exchange, d), ("all_reduce", "esp", d), (*exchange, d)],
        ),
        "a2a-allgather": (
            [
                (*exchange, d / mp),
                ("all_gather", "esp", d / mp),
                ("reduce_scatter", "esp", n * d / mp),
                (*exchange, d / mp),
                ("all_gather", "mp", d / mp),
            ],
            [
                (*exchange, d / mp),
                ("all_gather", "esp", d / mp),
                ("reduce_scatter", "esp", n * d / mp),
                (*exchange, d / mp),
                ("all_gather", "mp", d / mp),
            ],
        ),
        "parm-s1": ([(*fused, y)] * 2 + [("all_gather", "mp", x / mp)],) * 2,
        "parm-s2": ([(*fused, y)] * 2 + [("all_gather", "mp", d / mp)],) * 2,
        "ppmoe": ([("all_reduce", "mp", x)],) * 2,
    }
    size = {"mp": of.mp, "esp": of.esp, "ep": of.ep, "ep_esp": of.devices}
    forward, back = ([each for each in way if size[each[1]] > 1] for way in ways[name])
    return forward, back


@pytest.mark.parametrize("name", STEPPED)
@given(of=layers())
def test_every_collective_transfers_the_bytes_of_the_papers(name: str, of: Layer) -> None:
    assume_it_runs(name, of)

    forward, back = collectives_of_passes(name, of)

    assert (volumes(forward), volumes(back)) == tuple(
        [(kind, group, pytest.approx(size)) for kind, group, size in way] for way in table(name, of)
    )
    for each in (*forward, *back):
        n = each.group_size
        parts = {"all_gather": n - 1, "all_reduce": 2 * (n - 1) / n}.get(each.name, (n - 1) / n)
        assert each.sent_bytes == pytest.approx(parts * each.buffer_bytes)
        assert each.intra_bytes + each.inter_bytes == pytest.approx(each.sent_bytes)


@given(of=layers())
def test_bytes_between_nodes_are_those_of_the_summary(of: Layer) -> None:
    """Section 1: 2 N_ESP D (1 - G/P) for the baseline, divided by N_MP for Parm, and by n for the late gather."""
    assume(not list(expert_schedules["parm-s1"]().problems(of)))
    nodes = len(set(of.nodes or ()))
    leaves = 1 - 1 / nodes
    d = of.slots_bytes
    for name, buffer in (
        ("deepspeed", of.esp * d),
        ("parm-s1", of.esp * d / of.mp),
        ("parm-s2", of.esp * d / of.mp),
        ("a2a-allgather", d / of.mp),
        ("ppmoe", 0.0),
    ):
        forward, back = collectives_of_passes(name, of) if name != "ppmoe" or of.experts % of.mp == 0 else ([], [])
        assert sum(each.inter_bytes for each in forward) == pytest.approx(2 * buffer * leaves)
        assert sum(each.inter_bytes for each in back) == pytest.approx(2 * buffer * leaves)


def test_the_products_and_parameters_of_a_device_are_those_of_the_summary() -> None:
    of = layer(mp=4, esp=2, ep=4, experts=8)
    slots, wide = of.capacity, of.hidden * of.ffn_hidden
    flops = {name: price_expert_schedule(name, of, LINKS).flops for name in STEPPED if name != "deepspeed-lanes"}
    whole = 4 * of.experts * slots * wide

    assert flops == pytest.approx(
        {
            "expert-parallel": whole,
            "deepspeed": whole,
            "deepspeed-pregate": whole,
            "a2a-allgather": whole / 4,
            "parm-s1": whole / 4,
            "parm-s2": whole / 4,
            "ppmoe": whole / 4,
        }
    )
    parameters = {
        name: price_expert_schedule(name, of, LINKS).expert_weights
        for name in ("deepspeed", "parm-s1", "ppmoe", "expert-parallel")
    }
    assert parameters == {
        "deepspeed": 2 * wide * 8 / 8,
        "parm-s1": 2 * wide * 8 / 8,
        "ppmoe": 2 * wide * 8 / 4,
        "expert-parallel": 2 * wide * 8 / 4,
    }
    assert price_expert_schedule("deepspeed-lanes", layer(mp=2, esp=2, ep=4, experts=8), LINKS).flops == pytest.approx(
        4 * 8 * layer(mp=2, esp=2, ep=4, experts=8).capacity * wide / 2
    )


@pytest.mark.parametrize("name", STEPPED)
@given(of=layers())
def test_the_backward_of_a_backward_is_the_forward(name: str, of: Layer) -> None:
    steps = expert_schedules[name]().steps(of)

    again = backward_steps(backward_steps(steps))

    assert [step._replace(flops=step.flops / 4) for step in again] == steps


# ---- seconds: section 6.2 ----


def seconds(of: Layer, per_node: int) -> dict[str, float]:
    """Return a forward's communication time by the formulas of section 6.2, for groups that fit the nodes."""
    (ai, bi), (ao, bo) = LINKS.intra, LINKS.inter
    g, p = min(per_node, of.devices), of.devices
    d, x = of.slots_bytes, of.input_bytes
    y = of.esp * d / of.mp

    def gather(n: int, part: float) -> float:
        return (n - 1) * (ai + part * bi)

    def reduce(n: int, whole: float) -> float:
        return 2 * (n - 1) * (ai + whole / n * bi)

    def exchange(n: int, inside: int, whole: float) -> tuple[float, float]:
        outside = n - 1 - inside
        return inside * (ai + whole / n * bi), outside * (ao + whole / n * bo)

    def exchange_within_ep(whole: float) -> float:
        return sum(exchange(of.ep, g // of.esp - 1, whole))

    near, far = exchange(p, g - 1, y)
    piece = (of.mp - 1) * (ai + d / of.mp / of.ep * bi)
    overlapped = near + max(far, (of.ep - 1) * piece) + piece
    return {
        "expert-parallel": 2 * exchange_within_ep(d),
        "deepspeed": gather(of.esp, d) + reduce(of.esp, of.esp * d) + 2 * exchange_within_ep(of.esp * d),
        "deepspeed-pregate": gather(of.esp, x) + reduce(of.esp, of.esp * d) + 2 * exchange_within_ep(of.esp * d),
        "a2a-allgather": 2 * exchange_within_ep(d / of.mp) + 2 * gather(of.esp, d / of.mp) + gather(of.mp, d / of.mp),
        "parm-s1": 2 * (near + far) + gather(of.mp, x / of.mp),
        "parm-s2": near + far + overlapped,
        "ppmoe": reduce(of.mp, x),
    }


@pytest.mark.slow
@given(of=layers())
def test_seconds_are_those_of_the_topology_model(of: Layer) -> None:
    per_node = (of.nodes or ()).count(0)
    assume(of.ep > 1)
    for name, expected in seconds(of, per_node).items():
        if name == "ppmoe" and of.experts % of.mp:
            continue
        priced = price_expert_schedule(name, of, LINKS)
        assert priced.communication_s(priced.forward) == pytest.approx(expected), name
        if name not in ("deepspeed", "deepspeed-pregate"):  # which reduce and scatter where they gathered and reduced
            assert priced.communication_s(priced.backward) == pytest.approx(expected), name


def test_one_layer_computed_by_hand() -> None:
    """8 devices on two nodes, N_MP = N_ESP = 2: T = ceil(1.2 * 64 / 4) = 20, so D = 5120 bytes and X = 4096."""
    of = layer(2, 2, 4, per_node=4, experts=4, tokens=64, hidden=16, top_k=1, item_bytes=4)

    forward, back = collectives_of_passes("parm-s2", of)

    assert (of.capacity, of.slots_bytes, of.input_bytes) == (20, 5120, 4096)
    assert volumes(forward) == [
        ("all_to_all", "ep_esp", 5120),
        ("all_to_all", "ep_esp", 5120),
        ("all_gather", "mp", 2560),
    ]
    inside, between = 3 * (1e-5 + 640 * 2e-10), 4 * (3e-5 + 640 * 8e-10)
    piece = 1e-5 + 640 * 2e-10
    assert [each.time_s for each in forward] == pytest.approx([inside + between, inside + between, piece])
    assert [(each.intra_bytes, each.inter_bytes) for each in forward] == [(1920, 2560), (1920, 2560), (2560, 0)]
    assert sum(each.time_s for each in back) == pytest.approx(sum(each.time_s for each in forward))


def test_parm_chooses_s1_for_equal_messages_whatever_their_rounding() -> None:
    """One place, and as many slots as tokens: both gathers have the same bytes, and S2 has nothing to overlap."""
    of = replace(layer(4, 4, 1), experts=4, tokens=128, hidden=768, top_k=1, capacity_factor=1.0, item_bytes=4)
    assert of.slots_bytes == of.input_bytes

    for rate in (3e9, 7e9, 4e10):
        links = Links(Line(5e-6, 1 / rate), Line(3e-5, 8e-10))
        priced = price_expert_schedule("parm-auto", of, links)
        assert priced.name == "parm-s1"


@given(of=layers())
def test_the_automatic_choice_is_the_faster_of_its_two(of: Layer) -> None:
    one, two, auto = (price_expert_schedule(name, of, LINKS) for name in ("parm-s1", "parm-s2", "parm-auto"))
    s1, s2, chosen = (each.communication_s(each.forward) for each in (one, two, auto))

    assert auto.choice is not None
    assert auto.name == auto.choice.name == ("parm-s1" if s1 <= s2 * (1 + 1e-9) else "parm-s2")
    assert chosen == pytest.approx(min(s1, s2))
    assert auto.choice.reason.startswith(f"S{auto.name[-1]}")
    if auto.choice.code == "parm_schedule_faster":
        assert auto.choice.params["may_drop"] == of.may_drop
    else:
        assert auto.choice.code == ("parm_schedules_equal" if of.mp == 1 else "parm_s2_only")


@given(of=layers())
def test_without_tensor_parallelism_and_shards_all_schedules_are_equal(of: Layer) -> None:
    of = replace(of, mp=1, esp=1, nodes=tuple(device // 4 for device in range(of.ep)))

    first, *others = (collectives_of_passes(name, of) for name in STEPPED if name != "ppmoe")

    times = [[each.time_s for way in ways for each in way] for ways in (first, *others)]
    assert all(time == pytest.approx(times[0]) for time in times)
    assert collectives_of_passes("ppmoe", of) == ([], [])


# ---- seconds: section 6.1 ----

FIT = {
    "all_to_all": Line(1e-4, 3e-10),
    "all_gather": Line(3e-5, 1.6e-10),
    "reduce_scatter": Line(4e-5, 1.7e-10),
    "all_reduce": Line(8e-5, 6e-10),
    "overlap": Line(1.2e-4, 3.5e-10),
}


def test_with_measured_lines_the_times_are_those_of_parms_equations() -> None:
    of = layer(mp=4, esp=2, ep=4, tokens=256)
    d, x, y = of.slots_bytes, of.input_bytes, of.slots_bytes * 2 / 4
    fitted = replace(LINKS, fit=FIT)

    def line(name: str, size: float) -> float:
        return FIT[name].alpha + FIT[name].beta * size

    expected = {
        "deepspeed": line("all_gather", 2 * d) + line("all_reduce", 2 * d) + 2 * line("all_to_all", 2 * d),
        "deepspeed-pregate": line("all_gather", 2 * x) + line("all_reduce", 2 * d) + 2 * line("all_to_all", 2 * d),
        "parm-s1": 2 * line("all_to_all", y) + line("all_gather", x),
        "parm-s2": line("all_to_all", y) + line("overlap", y),
        "ppmoe": line("all_reduce", x),
        "expert-parallel": 2 * line("all_to_all", d),
        "a2a-allgather": 2 * line("all_to_all", d / 4)
        + line("all_gather", 2 * d / 4)
        + line("reduce_scatter", 2 * d / 4)
        + line("all_gather", d),
    }
    for name, took in expected.items():
        priced = price_expert_schedule(name, of, fitted)
        assert priced.communication_s(priced.forward) == pytest.approx(took), name
    apart = price_expert_schedule("parm-s2", of, replace(LINKS, fit={key: FIT[key] for key in FIT if key != "overlap"}))
    assert apart.communication_s(apart.forward) == pytest.approx(2 * line("all_to_all", y) + line("all_gather", d))


def test_a_line_of_one_kind_of_group_is_used_for_that_kind_only() -> None:
    of = layer(mp=4, esp=2, ep=4)
    fitted = replace(LINKS, fit={"all_to_all@ep": Line(1.0, 0.0), "all_to_all": Line(2.0, 0.0)})

    times = {
        name: price_expert_schedule(name, of, fitted).collectives(price_expert_schedule(name, of, fitted).forward)
        for name in ("a2a-allgather", "parm-s1")
    }

    assert {name: each[0].time_s for name, each in times.items()} == {"a2a-allgather": 1.0, "parm-s1": 2.0}


def test_an_overlap_faster_than_its_exchange_keeps_all_times_positive() -> None:
    of = layer(mp=4, esp=2, ep=4)
    fitted = price_expert_schedule("parm-s2", of, replace(LINKS, fit={**FIT, "overlap": Line(5e-5, 1e-10)}))

    times = [each.time_s for each in fitted.collectives(fitted.forward)]

    y = of.slots_bytes / 2
    assert min(times) >= 0
    assert sum(times) == pytest.approx(1e-4 + 3e-10 * y + 5e-5 + 1e-10 * y)


@given(
    k=st.integers(1, 4),
    tokens=st.sampled_from([64, 1024, 16384]),
    factor=st.sampled_from([0.25, 1.0, 4.0]),
    alphas=st.tuples(*[st.floats(0, 1e-3)] * 3),
    betas=st.tuples(*[st.floats(1e-11, 1e-9)] * 3),
)
def test_the_crossover_is_that_of_section_6_1(
    k: int, tokens: int, factor: float, alphas: tuple[float, ...], betas: tuple[float, ...]
) -> None:
    """X ((beta_o - beta_A2A) rho - beta_AG) >= alpha_AG + alpha_A2A - alpha_o, with rho = y / X."""
    of = layer(mp=4, esp=2, ep=4, experts=4, top_k=k, tokens=tokens, capacity_factor=factor)
    lines = dict(zip(("all_to_all", "all_gather", "overlap"), map(Line, alphas, betas), strict=True))
    x, y = of.input_bytes, of.esp * of.slots_bytes / of.mp
    rho = y / x
    gain = x * ((betas[2] - betas[0]) * rho - betas[1]) - (alphas[1] + alphas[0] - alphas[2])
    assume(abs(gain) > 1e-9)

    auto = price_expert_schedule("parm-auto", of, replace(LINKS, fit=lines))

    assert auto.name == ("parm-s1" if gain >= 0 else "parm-s2")


# ---- the simulated layer ----

COMPUTES = Rates(flops=1e12, memory=1e11)


def test_gate_and_experts_take_the_longer_of_their_flops_and_their_bytes() -> None:
    """One device, 96 tokens of width 16, 2 experts with 116 slots and inner width 64, at 4 bytes per element."""
    of = layer(1, 1, 1, experts=2)
    rows, tokens, m, h, e = 2 * 116, 96, 16, 64, 2
    assert of.capacity == 116

    def seconds(rates: Rates, way: str) -> list[tuple[float, float]]:
        """Return the communication seconds of a tensor and of weights."""
        steps = getattr(price_expert_schedule("expert-parallel", of, LINKS, rates), way)
        costed = [each for each in steps if each.step.op in (StepOp.GATE, StepOp.EXPERTS)]
        return [(float(each.compute_s[0] - each.weights_s[0]), float(each.weights_s[0])) for each in costed]

    def approximate_pairs(*expected: tuple[float, float]) -> list[tuple[object, object]]:
        return [(pytest.approx(tensor), pytest.approx(weights)) for tensor, weights in expected]

    slow, fast = Rates(flops=1e12, memory=1.0), Rates(flops=1.0, memory=1e12)
    sides, matrices = 2 * rows * (m + h), 2 * e * m * h  # of two products: what goes in and comes out, and weights
    scores, table = tokens * (m + e), m * e
    assert seconds(slow, "forward") == approximate_pairs(
        (4 * (scores + table + 2 * tokens * e), 0), (4 * (sides + matrices + 2 * rows * h), 0)
    )
    assert seconds(fast, "forward") == approximate_pairs((2 * tokens * table, 0), (4 * rows * m * h, 0))
    assert seconds(
        slow, "backward"
    ) == approximate_pairs(  # a gradient is written and read, the one that is held read and written
        (4 * (sides + matrices + 3 * rows * h), 4 * (sides + 4 * matrices)),
        (4 * (scores + table + 3 * tokens * e), 4 * (scores + 4 * table)),
    )
    assert seconds(fast, "backward") == approximate_pairs((4 * rows * m * h,) * 2, (2 * tokens * table,) * 2)
    measured = Rates(flops=1.0, memory=1.0, weighted_memory=np.inf)  # with all that gate and experts move
    assert seconds(measured, "forward") == approximate_pairs((2 * tokens * table, 0), (4 * rows * m * h, 0))


@pytest.mark.slow
@pytest.mark.parametrize("name", STEPPED)
@given(of=layers())
def test_an_unchunked_layer_takes_the_sum_of_its_steps(name: str, of: Layer) -> None:
    assume_it_runs(name, of)
    priced = price_expert_schedule(name, of, LINKS, COMPUTES)
    for direction in (priced.forward, priced.backward):
        assert simulate_layer(priced, direction).makespan == pytest.approx(priced.seconds(direction))


@pytest.mark.slow
@pytest.mark.parametrize("name", STEPPED)
@given(of=layers(), degree=st.sampled_from([1, 2, 4]))
def test_the_simulation_respects_lanes_and_causes_and_sends_all_bytes(name: str, of: Layer, degree: int) -> None:
    of = replace(of, degree=degree)
    assume_it_runs(name, of)
    priced = price_expert_schedule(name, of, LINKS, COMPUTES)

    simulated = simulate_layer(priced, priced.forward)

    assert (simulated.end >= simulated.start).all()
    for device in range(of.devices):
        for lane in range(3):
            mine = np.flatnonzero((simulated.device == device) & (simulated.lane == lane))
            assert (simulated.start[mine][1:] >= simulated.end[mine][:-1] - 1e-12).all()
    caused = np.flatnonzero(simulated.cause >= 0)
    hidden = np.isin(
        simulated.op[caused], [simulated.op[at] for at in range(len(simulated.op)) if _is_gather(simulated, at)]
    )
    before = simulated.end[simulated.cause[caused]] <= simulated.start[caused] + 1e-12
    assert (before | hidden).all()
    sent = np.sum([costed.sent for costed in priced.forward], axis=0)
    on_links = np.bincount(simulated.device, simulated.bytes, minlength=of.devices)
    assert on_links == pytest.approx(sent.sum(axis=0), abs=1e-6)


def _is_gather(simulated: object, at: int) -> bool:
    from meshwave.engine.experts import LAYER_OPS, LayerTimeline, StepOp

    assert isinstance(simulated, LayerTimeline)
    return LAYER_OPS[simulated.op[at]] == StepOp.GATHER_SLOTS


def test_chunks_overlap_but_every_message_takes_its_startup_time() -> None:
    of = layer(mp=2, esp=2, ep=4, tokens=4096, hidden=256, ffn_hidden=1024, experts=8)
    once, four = (price_expert_schedule("parm-s1", replace(of, degree=degree), LINKS, COMPUTES) for degree in (1, 4))
    small = replace(of, tokens=16, hidden=2, ffn_hidden=4)
    tiny, cut = (price_expert_schedule("parm-s1", replace(small, degree=degree), LINKS, COMPUTES) for degree in (1, 4))

    assert simulate_layer(four, four.forward).makespan < simulate_layer(once, once.forward).makespan
    assert simulate_layer(cut, cut.forward).makespan > simulate_layer(tiny, tiny.forward).makespan


# ---- experts that lie unevenly, more than once, or are not chosen alike ----


@st.composite
def placed_layers(draw: st.DrawFn) -> Layer:
    of = draw(layers())
    placement = [set(draw(st.sets(st.integers(0, of.experts - 1), max_size=of.experts))) for _ in range(of.ep)]
    for expert in range(of.experts):
        placement[draw(st.integers(0, of.ep - 1))].add(expert)
    return replace(of, placement=tuple(tuple(sorted(held)) for held in placement))


@given(of=placed_layers())
def test_every_place_is_served_by_a_holder_of_the_expert_on_its_node_if_possible(of: Layer) -> None:
    holders = of.holders(of.ep)
    for place in range(of.ep):
        for expert in range(of.experts):
            server = int(of.serving_places[place, expert])
            assert server in holders[expert]
            assert server == place or place not in holders[expert]
            close = [h for h in holders[expert] if of._nodes_of(h) & of._nodes_of(place)]
            assert server in (close or holders[expert])
    assert of.visit_counts.sum(axis=1).tolist() == [of.experts] * of.ep


@given(ep=st.sampled_from([4, 6, 8]), copies=st.data())
def test_replicas_on_one_node_serve_equal_numbers_of_places(ep: int, copies: st.DataObject) -> None:
    holders = copies.draw(st.sets(st.integers(0, ep - 1), min_size=1))
    placement = tuple((0, 1) if place in holders else (1,) for place in range(ep))
    of = layer(1, 1, ep, per_node=ep, experts=2, placement=placement)

    served = np.bincount(of.serving_places[:, 0], minlength=ep)

    assert served[served > 0].max() - served[served > 0].min() <= 1


@given(of=placed_layers())
def test_sent_bytes_equal_requested_bytes(of: Layer) -> None:
    for name in ("deepspeed", "parm-s1", "a2a-allgather"):
        priced = price_expert_schedule(name, of, LINKS)
        for costed in priced.forward:
            if costed.step.collective != "all_to_all":
                continue
            pairs = traffic(of, costed.step)
            bytes_of_all = costed.step.bytes * of.devices
            assert pairs.sum() == pytest.approx(bytes_of_all)
            by_device = pairs.sum(axis=1 if costed.step.op == "dispatch" else 0)
            assert by_device == pytest.approx(np.full(of.devices, costed.step.bytes))
        assert priced.rows == pytest.approx(
            of.visit_counts.sum(axis=0).max()
            * next(costed.step.rows for costed in priced.forward if costed.step.rows)
            / of.experts
        )


@given(of=layers(), seed=st.integers(0, 99))
def test_an_explicit_placement_in_equal_blocks_costs_the_same_as_the_default(of: Layer, seed: int) -> None:
    drawn = replace(of, placement=of.experts_by_place(of.ep))
    for name in ("expert-parallel", "deepspeed", "a2a-allgather", "parm-s1", "parm-s2"):
        before, after = (price_expert_schedule(name, each, LINKS, COMPUTES) for each in (of, drawn))
        assert after.seconds(after.backward) == pytest.approx(before.seconds(before.backward))
        assert (after.flops, after.expert_weights) == pytest.approx((before.flops, before.expert_weights))


def test_the_load_affects_time_only_without_padding_to_a_capacity() -> None:
    hot = (0.5, *(0.5 / 7,) * 7)
    padded = layer(mp=4, esp=1, ep=4, experts=8)
    dropless = replace(padded, capacity_factor=None)

    def flops(name: str, of: Layer) -> tuple[float, float]:
        return price_expert_schedule(name, of, LINKS).flops, price_expert_schedule(
            name, replace(of, load=hot), LINKS
        ).flops

    for name in ("parm-s1", "ppmoe"):
        even, skewed = flops(name, padded)
        assert skewed == even
    for name in ("parm-s1", "ppmoe"):  # padded to nothing: the hottest device, with two experts
        even, skewed = flops(name, dropless)
        assert even == pytest.approx(4 * 2 * 96 * 16 * 64 / 4)
        assert skewed / even == pytest.approx(4 * (0.5 + 0.5 / 7))


@pytest.mark.parametrize("name", ["expert-parallel", "deepspeed", "a2a-allgather", "parm-s1", "parm-s2", "ppmoe"])
def test_balanced_experts_take_less_time_without_a_capacity(name: str) -> None:
    """The time is proportional to the load of the fullest device; with a capacity all slots are computed anyway."""
    of = layer(mp=4, esp=1, ep=4, experts=8, hidden=64, load=(0.4, 0.3, *(0.05,) * 6), capacity_factor=None)
    places = expert_schedules[name].places
    placement = balance_experts(of, extra=1, places=places)

    def experts_s(**changes: object) -> float:
        priced = price_expert_schedule(name, replace(of, **changes), LINKS, Rates(flops=1e9))  # type: ignore[arg-type]
        return sum(float(each.compute_s.max()) for each in priced.forward if each.step.op == StepOp.EXPERTS)

    fullest = [device_load(each, places).max() for each in (of, replace(of, placement=placement))]
    assert fullest[0] == pytest.approx(4 * 0.7) and fullest[1] < 1.31
    assert experts_s(placement=placement) / experts_s() == pytest.approx(fullest[1] / fullest[0])
    assert experts_s(capacity_factor=1.0) == experts_s(capacity_factor=1.0, load=None)


def test_a_gather_between_nodes_is_not_hidden() -> None:
    of = layer(mp=4, esp=1, ep=8, per_node=2)

    priced: Price = price_expert_schedule("parm-s2", of, LINKS)
    *_, gather = priced.collectives(priced.forward)

    part = of.slots_bytes / 4
    assert gather.time_s == pytest.approx(8 * 3 * (3e-5 + part / 8 * 8e-10))
    assert gather.inter_bytes == pytest.approx(3 * part)


@pytest.mark.parametrize("name", STEPPED)
@given(layout=layouts, load=st.sampled_from([None, "hot"]))
@settings(max_examples=examples(10))
def test_the_traffic_of_all_to_alls_adds_up_to_the_bytes_that_devices_send(
    name: str, layout: tuple[int, int, int, int], load: str | None
) -> None:
    mp, esp, ep, per_node = layout
    shares = None if load is None else tuple(np.r_[3.0, np.ones(2 * ep - 1)] / (2 * ep + 2))
    made = layer(mp, esp, ep, per_node, load=shares)
    assume(next(expert_schedules[name]().problems(made), None) is None)
    priced = price_expert_schedule(name, made, LINKS)

    for direction in (priced.forward, priced.backward):
        pairs = priced.exchanged_bytes(direction)
        np.fill_diagonal(pairs, 0)
        is_same_node = made.node_of[:, None] == made.node_of[None, :]
        exchanges = [costed.sent for costed in direction if costed.step.collective == "all_to_all"]
        inside, between = sum(exchanges) if exchanges else np.zeros((2, made.devices))
        assert np.allclose((pairs * is_same_node).sum(axis=1), inside)
        assert np.allclose((pairs * ~is_same_node).sum(axis=1), between)


def test_biases_and_clamped_activations_of_experts_are_separate_kernels_where_these_have_a_rate():
    plain = Layer(mp=1, ep=1, esp=1, experts=4, tokens=64, hidden=32, ffn_hidden=48, matrices=3, item_bytes=2)
    clamped = replace(plain, clamps_activation=True)
    bare = replace(plain, has_biases=False)
    eager, fused = Rates(1e12, 1e12, eager_memory=1e9), Rates(1e12, 1e12)

    def seconds(layer: Layer, rates: Rates) -> list[float]:
        priced = price_expert_schedule("expert-parallel", layer, Links(Line(), Line()), rates)
        return [priced.seconds(way) for way in (priced.forward, priced.backward)]

    rows = 64
    for layer, elements in ((bare, (0, 0)), (plain, (6 * 32, 8 * 32)), (clamped, (6 * 32 + 8 * 48, 8 * 32 + 10 * 48))):
        expected = [base + rows * each * 2 / 1e9 for base, each in zip(seconds(layer, fused), elements, strict=True)]
        assert seconds(layer, eager) == pytest.approx(expected, rel=1e-3)
