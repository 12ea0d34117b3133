"""Traffic between devices as plain data for ``static/kit/traffic.js``."""

from __future__ import annotations

from typing import Any

from meshwave.engine.traffic import Traffic
from meshwave.engine.units import quantity


def traffic_data(traffic: Traffic, title: str, row_word: str, node_word: str = "node") -> dict[str, Any]:
    """Return a table of the bytes between devices.

    ``row_word`` is the noun for a device, such as ``rank``, and ``node_word`` the noun for a node, such as ``host``.
    """
    largest = float(traffic.bytes.max(initial=0.0)) or 1.0
    inside, between = (quantity(size, "B") for size in (traffic.bytes_inside_nodes, traffic.bytes_between_nodes))
    return {
        "title": title,
        "about": f"{inside} inside {node_word}s, {between} between {node_word}s"
        if traffic.bytes.any()
        else "Nothing is sent",
        "word": row_word if traffic.unit == "device" else node_word,
        "node_word": node_word,
        "numbers": list(traffic.numbers),
        "nodes": list(traffic.nodes),
        "texts": [[_bytes_text(size) for size in row] for row in traffic.bytes.tolist()],
        "shares": (traffic.bytes / largest).round(3).tolist(),
        "sends": [_bytes_text(size) for size in traffic.bytes.sum(axis=1).tolist()],
        "receives": [_bytes_text(size) for size in traffic.bytes.sum(axis=0).tolist()],
    }


def _bytes_text(size: float) -> str:
    return quantity(size, "B") if size else "–"
