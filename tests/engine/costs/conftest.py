"""Fixtures for designs to price; each test changes only the keys that it is about."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from meshwave.engine.costs.profile_store import store_profile
from meshwave.engine.document import Design, parse_design
from tests.engine.costs.profiles import example_profile

A100 = {"name": "A100", "peak_flops": 312e12, "memory_bytes": 80e9, "memory_bandwidth": 2e12, "efficiency": 0.5}
SMALL = {"kind": "gpt", "layers": 32, "hidden": 64, "heads": 4, "sequence": 32, "vocab": 300}


@pytest.fixture(scope="module", autouse=True)
def own_profiles(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Store profiles in a temporary folder of the test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MESHWAVE_HOME", str(tmp_path_factory.mktemp("profiles")))
        yield


@pytest.fixture
def design() -> Callable[..., Design]:
    """Return a function that makes a design: ``design(ranks=4, dp=1, tp=1, schedule="1f1b", microbatches=4,
    **sections)``.

    Meshes are on consecutive devices of the cluster. A section given as a keyword argument overrides single keys of the
    default. Calibrated costs without a profile use an example profile.
    """

    def make(ranks: int = 4, *, dp: int = 1, tp: int = 1, **changes: Any) -> Design:
        size = dp * tp
        pipeline = {"schedule": changes.pop("schedule", "1f1b"), "microbatches": changes.pop("microbatches", 4)}
        document: dict[str, Any] = {
            "format": "meshwave/1",
            "cluster": {
                "nodes": 4,
                "devices_per_node": 8,
                "device": A100,
                "intra_node": {"latency_s": 5e-6, "bandwidth": 300e9},
                "inter_node": {"latency_s": 1e-5, "bandwidth": 25e9},
            },
            "model": SMALL,
            "meshes": [
                {
                    "name": f"m{rank}",
                    "devices": list(range(rank * size, (rank + 1) * size)),
                    "axes": {"dp": dp, "tp": tp},
                }
                for rank in range(ranks)
            ],
            "pipeline": pipeline,
            "training": {},
            "cost": {"kind": "roofline"},
        }
        for section, change in changes.items():
            document[section] = {**document.get(section, {}), **change} if isinstance(change, dict) else change
        if document["cost"] == {"kind": "calibrated"}:
            store_profile(example_profile(), "known.json")
            document["cost"]["profile"] = "known.json"
        return parse_design(document)

    return make
