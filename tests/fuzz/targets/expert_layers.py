"""Expert-layer documents, read by ``meshwave moe``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from tests.engine.document.test_extremes import LAYER
from tests.fuzz.oracle import Act, Ended, about_command
from tests.fuzz.target import Target

OTHER = {
    "ranks": 16, "ranks_per_node": 8, "mp": 2, "esp": 1, "ep": 16, "experts": 32, "top_k": 2, "capacity_factor": None,
    "load": None, "fit": None,
}  # fmt: skip


class ExpertLayers(Target):
    """Every schedule of an expert layer, as JSON and as text."""

    is_guided = True

    def seeds(self) -> list[bytes]:
        return [json.dumps(document).encode() for document in (LAYER, {**LAYER, **OTHER}, {**LAYER, "fit": None})]

    def calls(self, path: Path) -> Iterator[tuple[str, Act]]:
        ended: list[Ended] = []
        yield "moe --json", lambda: about_command("moe", str(path), "--json", ended=ended)
        if ended and ended[0].status == 0:
            yield "moe", lambda: about_command("moe", str(path))


TARGET = ExpertLayers()
