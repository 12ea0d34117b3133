"""Benchmark of lower bounds and lanes of links: the part ``links`` of ``meshwave bench``."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from meshwave.engine.document import load_design, parse_design
from meshwave.engine.files import example
from meshwave.engine.predict.link_flows import find_flows
from meshwave.engine.predict.link_lanes import link_lanes
from meshwave.engine.predict.link_load import find_bounds
from meshwave.engine.predict.prediction import Prediction, predict

REPEATS = 7
BANDWIDTHS = {"NICs nearly full": 2e8, "NICs mostly idle": 25e9}
"""Bytes/s of a NIC."""


def figures() -> dict[str, float]:
    """lower bounds and the lanes of links of 8 x 32 on four nodes (processor time)"""
    found: dict[str, float] = {}
    for name, bandwidth in BANDWIDTHS.items():
        prediction = on_four_nodes(bandwidth)
        found[f"{name}: busiest port_share"] = max(load.share for load in prediction.port_loads)
        found[f"{name}: lower bounds_s"] = _processor_s(_bounds, prediction)
        found[f"{name}: lanes_s"] = _processor_s(_lanes, prediction)
    return found


def on_four_nodes(bandwidth: float) -> Prediction:
    """Return the prediction of eight meshes with 32 microbatches, two waves, on four nodes of two devices."""
    document = load_design(example("11-eight-by-32")).model_dump(mode="json")
    document["cluster"].update(nodes=4, devices_per_node=2)
    document["cluster"]["inter_node"]["bandwidth"] = bandwidth
    document["cost"]["transfer_model"] = "shared-links"
    return predict(parse_design(document))


def _bounds(prediction: Prediction) -> None:
    find_bounds(prediction.program, prediction.costs, prediction.timeline, prediction.port_loads)


def _lanes(prediction: Prediction) -> None:
    """Find what the page draws when its switch is turned on."""
    flows = find_flows(prediction.program, prediction.costs, prediction.timeline)
    assert flows is not None
    link_lanes(flows, prediction.port_loads)


def _processor_s(action: Callable[[Prediction], None], prediction: Prediction) -> float:
    taken = []
    for _ in range(REPEATS):
        began = time.process_time()
        action(prediction)
        taken.append(time.process_time() - began)
    return statistics.median(taken)
