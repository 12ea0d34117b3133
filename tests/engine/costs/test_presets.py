"""Presets are data: sound cluster sections with a source, one file each."""

import pytest

from meshwave.engine.costs.presets import preset, presets
from meshwave.engine.document import parse_design
from meshwave.engine.errors import InputError

EXPECTED = {"hanayo-tacc", "hanayo-tc", "hanayo-pc", "hanayo-fc", "dgx-a100", "dgx-h100", "h200-node", "laptop"}


def test_presets_include_common_clusters() -> None:
    assert set(presets()) >= EXPECTED
    assert list(presets()) == sorted(presets())


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_a_preset_is_a_valid_cluster_of_a_design(name: str) -> None:
    found = preset(name)
    document = {
        "format": "meshwave/1",
        "cluster": found.cluster.model_dump(mode="json"),
        "model": {"kind": "gpt", "layers": 4, "hidden": 64, "heads": 4, "sequence": 32, "vocab": 300},
        "meshes": [{"name": "A", "devices": [0]}, {"name": "B", "devices": [1]}],
        "pipeline": {"schedule": "gpipe", "microbatches": 2},
    }

    assert parse_design(document).cluster == found.cluster
    assert found.name == name
    assert len(found.source) > 40
    assert found.cluster.intra_node.bandwidth > found.cluster.inter_node.bandwidth


def test_an_unknown_preset_names_the_nearest() -> None:
    with pytest.raises(InputError, match="Did you mean 'dgx-h100'"):
        preset("dgx-h10")
