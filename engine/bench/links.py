"""Benchmark ``links`` of ``meshwave bench``: lower bounds and timeline lanes of links."""

from __future__ import annotations

import time
from functools import partial

from meshwave.engine.bench.measuring import median_s
from meshwave.engine.document import load_design, parse_design
from meshwave.engine.files import example
from meshwave.engine.predict.link_flows import find_flows
from meshwave.engine.predict.link_lanes import link_lanes
from meshwave.engine.predict.link_load import find_bounds
from meshwave.engine.predict.prediction import Prediction, predict

REPEATS = 7
BANDWIDTHS = {"NICs nearly full": 2e8, "NICs mostly idle": 25e9}
"""Bandwidth of a NIC in bytes/s, by the name of the case."""


def measure_links() -> dict[str, float]:
    """Measure the CPU time to compute lower bounds and link lanes, for 8 meshes and 32 microbatches on four nodes."""
    found: dict[str, float] = {}
    for name, bandwidth in BANDWIDTHS.items():
        prediction = predict_on_four_nodes(bandwidth)
        found[f"{name}: busiest port_share"] = max(load.share for load in prediction.port_loads)
        found[f"{name}: lower bounds_s"] = median_s(partial(_find_bounds, prediction), REPEATS, time.process_time)
        found[f"{name}: lanes_s"] = median_s(partial(_find_lanes, prediction), REPEATS, time.process_time)
    return found


def predict_on_four_nodes(bandwidth: float) -> Prediction:
    """Return the prediction of eight meshes, 32 microbatches and two waves on four nodes of two devices."""
    document = load_design(example("11-eight-by-32")).model_dump(mode="json")
    document["cluster"].update(nodes=4, devices_per_node=2)
    document["cluster"]["inter_node"]["bandwidth"] = bandwidth
    document["cost"]["transfer_model"] = "shared-links"
    return predict(parse_design(document))


def _find_bounds(prediction: Prediction) -> None:
    find_bounds(prediction.program, prediction.costs, prediction.timeline, prediction.port_loads)


def _find_lanes(prediction: Prediction) -> None:
    """Compute the link lanes that the page draws."""
    flows = find_flows(prediction.program, prediction.costs, prediction.timeline)
    assert flows is not None
    link_lanes(flows, prediction.port_loads)
