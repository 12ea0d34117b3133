"""The grid of expert layers: prices, the fastest schedule of each layer, and its dependence on the links."""

from __future__ import annotations

import json
from math import prod

import numpy as np
import pytest

from meshwave.engine.document import load_design
from meshwave.engine.document.expert_layer_document import parse_expert_layer
from meshwave.engine.errors import InputError
from meshwave.engine.files import example
from meshwave.engine.predict.expert_comparison import expert_layer_json
from meshwave.engine.predict.expert_map import (
    CLUSTERS,
    GRID,
    GRID_CORNERS,
    GRID_SCHEDULES,
    OWN_CLUSTER,
    SPREADING_SCHEDULES,
    Grid,
    GridCluster,
    design_cluster,
    find_cluster,
    price_grid,
)
from meshwave.engine.units import quantity

pytestmark = pytest.mark.slow


def test_the_grid_has_as_many_layers_as_parms_paper() -> None:
    found = price_grid(CLUSTERS["pcie"])

    assert len(found.parm_auto_seconds) == prod(map(len, GRID.values())) == 1296
    rows = {tuple(row) for row in np.stack(list(found.axes.values()), axis=1).tolist()}
    assert len(rows) == 1296


def test_a_layer_of_the_grid_has_the_prices_of_its_schedules() -> None:
    found = price_grid(CLUSTERS["pcie"])
    at = 1296 // 2 + 77
    row = {name: float(values[at]) for name, values in found.axes.items()}
    asked = {
        "format": "meshwave-expert-layer/1",
        "ranks": 32,
        "ranks_per_node": 4,
        **{name: int(row[name]) for name in ("mp", "esp", "batch", "sequence", "hidden", "top_k")},
        "ep": int(32 / row["esp"]),
        "experts": int(32 / row["esp"]),
        "ffn_hidden": int(row["hidden"] * row["width"]),
        "capacity_factor": row["capacity_factor"],
        "item_bytes": 4,
        "links": {
            "intra_node": {"latency_s": 1.07e-5, "bandwidth": 1 / 2.24e-10},
            "inter_node": {"latency_s": 5.1e-6, "bandwidth": 1 / 3.26e-10},
        },
        "fit": None,
    }
    alone = expert_layer_json(parse_expert_layer(json.dumps(asked)))["schedules"]

    for name in GRID_SCHEDULES:
        assert found.communication_s[name][at] == pytest.approx(sum(alone[name]["communication_s"].values()))
        assert found.seconds[name][at] > found.communication_s[name][at]
        assert found.memory_bytes[name][at] == 16 * alone[name]["parameters"]


def test_the_fastest_schedule_of_a_layer_takes_the_least_time() -> None:
    found = price_grid(CLUSTERS["pcie"])

    times = np.stack([found.seconds[name] for name in SPREADING_SCHEDULES])
    assert (times[found.winner, np.arange(1296)] == times.min(axis=0)).all()
    assert (found.parm_auto_seconds >= times[2:].min(axis=0)).all()
    assert found.speedup() == pytest.approx(found.seconds["deepspeed"] / found.parm_auto_seconds)
    assert found.speedup("ppmoe", "parm-s1") == pytest.approx(found.seconds["ppmoe"] / found.seconds["parm-s1"])


def test_all_schedules_whose_experts_fit_are_compared() -> None:
    found = price_grid(CLUSTERS["pcie"])

    assert (
        found.names
        == GRID_SCHEDULES
        == ("expert-parallel", "deepspeed", "a2a-allgather", "parm-s1", "parm-s2", "ppmoe")
    )
    times, memory = (np.stack([of[name] for name in GRID_SCHEDULES]) for of in (found.seconds, found.memory_bytes))
    there, each = memory <= found.cluster.memory_bytes, np.arange(1296)
    fastest = times[found.fastest, each]
    assert there[found.fastest, each].all()
    assert (fastest == np.where(there, times, np.inf).min(axis=0)).all()
    assert (fastest * found.speedup_over_second)[0] == pytest.approx(sorted(times[there[:, 0], 0])[1])
    assert found.speedup_over_second.min() >= 1
    alike = found.memory_bytes["deepspeed"]
    assert (found.memory_bytes["expert-parallel"] == found.axes["esp"] * alike).all()
    assert (found.memory_bytes["ppmoe"] == 32 / found.axes["mp"] * alike).all()
    assert 0 < found.fits("ppmoe").sum() < 1296 == found.fits("parm-s2").sum()
    sends_nothing_between_nodes = found.fits("ppmoe")
    assert (found.fastest[sends_nothing_between_nodes] == GRID_SCHEDULES.index("ppmoe")).all()


def test_if_no_experts_fit_only_time_is_compared() -> None:
    small = GridCluster("", "", CLUSTERS["pcie"].links, memory_bytes=1.0)
    found = price_grid(CLUSTERS["pcie"])._replace(cluster=small)

    times = np.stack([found.seconds[name] for name in GRID_SCHEDULES])
    assert not any(found.fits(name).any() for name in GRID_SCHEDULES)
    assert (times[found.fastest, np.arange(1296)] == times.min(axis=0)).all()
    assert np.isfinite(found.speedup_over_second).all()


@pytest.mark.nightly
def test_gains_grow_with_the_tokens_that_are_sent_more_than_once() -> None:
    """DeepSpeed-MoE sends and computes each token N_MP times, so it is about that many times slower, plus its gathers."""
    for name in CLUSTERS:
        found = price_grid(CLUSTERS[name], corners=True)
        once, twice, four = (found.speedup()[found.axes["mp"] == mp] for mp in (1, 2, 4))
        assert np.median(once) < 1.5 < np.median(twice) < 3 < np.median(four)


# ---- clusters ----


def range_over_a2a(found: Grid, *, mp: int, esp: int) -> tuple[float, float]:
    gain = found.speedup("a2a-allgather")[(found.axes["mp"] == mp) & (found.axes["esp"] == esp)]
    return float(gain.min()), float(gain.max())


def test_the_corners_of_the_grid_are_layers_of_it() -> None:
    whole, ends = price_grid(CLUSTERS["pcie"]), price_grid(CLUSTERS["pcie"], corners=True)

    assert len(ends.parm_auto_seconds) == prod(map(len, GRID_CORNERS.values())) == 384
    rows = {tuple(row): at for at, row in enumerate(np.stack(list(whole.axes.values()), axis=1).tolist())}
    at = [rows[tuple(row)] for row in np.stack(list(ends.axes.values()), axis=1).tolist()]
    assert ends.parm_auto_seconds == pytest.approx(whole.parm_auto_seconds[at])
    assert ends.speedup().min() == pytest.approx(whole.speedup().min(), rel=0.01)
    assert ends.speedup().max() == pytest.approx(whole.speedup().max(), rel=0.01)


def test_the_smallest_gain_is_without_tensor_parallelism() -> None:
    for name in ("pcie", "server"):
        found = price_grid(CLUSTERS[name], corners=True)
        least = int(np.argmin(found.speedup()))
        assert (found.axes["mp"][least], found.axes["esp"][least]) == (1, 2)
        assert found.speedup()[least] == pytest.approx(1.13, abs=0.015)  # as printed


def test_the_fastest_schedule_depends_on_the_links() -> None:
    """A fused exchange sends each token ``esp`` times, which pays off only if links inside a node are slow."""
    over = {name: price_grid(CLUSTERS[name], corners=True) for name in CLUSTERS}

    for name in ("pcie-slow", "nvlink", "nvlink-slow"):
        assert over[name].speedup("a2a-allgather").max() < 1
    assert range_over_a2a(over["pcie"], mp=4, esp=2)[0] > 0.99
    assert range_over_a2a(over["pcie"], mp=2, esp=4)[1] < 1
    assert range_over_a2a(over["server"], mp=2, esp=4)[1] > 1.05
    cut_over_mp = [range_over_a2a(over["nvlink"], mp=mp, esp=esp) for mp in (2, 4) for esp in (2, 4)]
    assert min(low for low, _ in cut_over_mp) == pytest.approx(0.53, abs=0.03)
    assert max(high for _, high in cut_over_mp) == pytest.approx(0.97, abs=0.03)


def test_the_cluster_of_a_design_has_its_devices_and_links() -> None:
    design = load_design(example("16-gpt2-moe"))

    found = design_cluster(design)

    assert (found.devices, found.devices_per_node, found.item_bytes) == (16, 8, 2)
    assert found.memory_bytes == 80e9
    near, far = design.cluster.link_inside_node, design.cluster.link_between_nodes
    assert (1 / found.links.intra.beta, 1 / found.links.inter.beta) == pytest.approx((near.bandwidth, far.bandwidth))
    assert f"{quantity(near.bandwidth, 'B/s')} inside a node" in found.description
    assert find_cluster(OWN_CLUSTER, design) == found
    assert find_cluster("nvlink", design) is CLUSTERS["nvlink"]
    with pytest.raises(InputError, match="there is no cluster called 'nvlnk'. Did you mean 'nvlink'"):
        find_cluster("nvlnk", design)


@pytest.mark.parametrize(
    ("nodes", "per_node", "devices", "used_per_node"),
    [(1, 1, 8, 1), (1, 4, 8, 4), (1, 8, 8, 8), (3, 6, 16, 6), (1, 64, 32, 32), (64, 8, 32, 8)],
)
def test_any_cluster_can_price_the_grid(nodes: int, per_node: int, devices: int, used_per_node: int) -> None:
    design = load_design(example("16-gpt2-moe"))
    size = {"nodes": nodes, "devices_per_node": per_node}
    drawn = design_cluster(design.model_copy(update={"cluster": design.cluster.model_copy(update=size)}))

    assert (drawn.devices, drawn.devices_per_node, len(drawn.nodes)) == (devices, used_per_node, devices)


def test_a_grid_on_the_cluster_of_a_design_uses_that_cluster() -> None:
    found = price_grid(design_cluster(load_design(example("16-gpt2-moe"))), corners=True)

    assert all(np.isfinite(seconds).all() and (seconds > 0).all() for seconds in found.seconds.values())
    assert found.parm_auto_seconds.max() < price_grid(CLUSTERS["pcie"], corners=True).parm_auto_seconds.max()
