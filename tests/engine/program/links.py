"""Designs whose meshes share NICs, for tests of links."""

from __future__ import annotations

from typing import Any

from hypothesis import assume
from hypothesis import strategies as st

from meshwave.engine.errors import MeshwaveError
from meshwave.engine.predict.prediction import Prediction, predict
from meshwave.engine.schedules import schedules
from tests._strategies import A100, pipelines

PLAYED = [name for name in schedules if name not in ("auto", "custom")]


@st.composite
def shared_predictions(draw: st.DrawFn, transfer_model: str = "shared-links") -> Prediction:
    """Draw the step of any schedule whose meshes are placed anywhere on nodes of two devices.

    Links are slow or fast, with tp, dp or neither, with or without switches and uplinks, and with replicated or sharded
    state: transfers, reductions, exchanges and gathers share NICs.
    """
    drawn = draw(pipelines(draw(st.sampled_from(PLAYED)), ranks=4, microbatches=6))
    width = draw(st.sampled_from([1, 2]))
    axes = {"dp": 1, "tp": width} if draw(st.booleans()) else {"dp": width, "tp": 1}
    order = draw(st.permutations(range(drawn.ranks * width)))
    meshes = [
        {"name": f"m{rank}", "devices": order[rank * width : (rank + 1) * width], "axes": axes}
        for rank in range(drawn.ranks)
    ]
    bandwidth = draw(st.sampled_from([1e6, 1e7, 1e8, 1e10]))
    cluster = nodes_of_two(drawn.ranks * width, bandwidth, draw(st.sampled_from([1, 2])))
    if draw(st.booleans()):
        cluster |= {"node_bandwidth": 12 * bandwidth, "uplink": {"nodes": 1, "bandwidth": 0.7 * bandwidth}}
    sharding = draw(st.sampled_from(["none", "none", "optimizer", "gradients", "parameters"]))
    state = {
        "sharding": sharding,
        **({"unsharded_stages": 0} if sharding == "parameters" and draw(st.booleans()) else {}),
    }
    try:
        found = predict(
            drawn.design(
                cluster=cluster,
                meshes=meshes,
                training={"micro_batch_size": 2, **state},
                cost={"kind": "roofline", "transfer_model": transfer_model},
            )
        )
    except MeshwaveError:
        assume(False)
        raise
    assume(found.costs.network is not None or transfer_model not in ("shared-links", "link-serial"))
    return found


def nodes_of_two(devices: int, bandwidth: float, nics: int = 1) -> dict[str, Any]:
    """Return a cluster of ``devices`` devices, two per node."""
    return {
        "nodes": -(-devices // 2),
        "devices_per_node": 2,
        "nics_per_node": nics,
        "device": A100,
        "intra_node": {"latency_s": 1e-6, "bandwidth": 10 * bandwidth},
        "inter_node": {"latency_s": 1e-5, "bandwidth": bandwidth},
    }
