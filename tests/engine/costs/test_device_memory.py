"""Memory of every device: the devices of a mesh differ by the experts that they hold and by the rows of these experts."""

from typing import Any

import numpy as np
import pytest

from meshwave.engine.costs import join_equal_devices
from meshwave.engine.costs.device_memory import DeviceMemory
from meshwave.engine.costs.expert_blocks import expert_layers_per_stage
from meshwave.engine.document import Design, load_design
from meshwave.engine.files import example
from meshwave.engine.predict.prediction import Prediction, predict

PLACEMENT = ((0, 1, 2, 3, 4, 5), (6, 7, 8), (9, 10, 11), (12, 13, 14, 15))


def prediction(sharding: str = "none", **experts: Any) -> Prediction:
    """Return the prediction of 16 experts in each second layer, on two meshes of ``dp=2 x tp=4``."""
    drawn = load_design(example("16-gpt2-moe"))
    changes = {
        "experts": drawn.experts.model_copy(update=experts),
        "training": drawn.training.model_copy(update={"sharding": sharding}),
    }
    return predict(Design.model_validate(drawn.model_copy(update=changes).model_dump()))


def bytes_by_device(of: Prediction, category: str) -> dict[int, float]:
    """Return the bytes of a category by device."""
    return {device: group.by_category[category] for group in of.device_memory for device in group.devices}


@pytest.mark.slow
@pytest.mark.parametrize("sharding", ["none", "optimizer", "parameters"])
@pytest.mark.parametrize("schedule", ["ppmoe", "parm-s2"])
@pytest.mark.parametrize("placement", [None, PLACEMENT])
def test_every_device_is_in_one_group_and_the_fullest_has_the_memory_of_its_mesh(
    schedule: str, sharding: str, placement: Any
) -> None:
    found = prediction(sharding, schedule=schedule, placement=placement)

    assert sorted(device for group in found.device_memory for device in group.devices) == list(range(16))
    for mesh, peak in zip(found.design.meshes, found.memory.total_bytes, strict=True):
        groups = [group for group in found.device_memory if group.meshes == (mesh.name,)]
        assert len(groups) == (1 if placement is None else 3)
        assert sorted(device for group in groups for device in group.devices) == sorted(mesh.devices)
        assert max(group.total_bytes for group in groups) == pytest.approx(peak)


def test_a_device_holds_the_state_of_its_own_experts() -> None:
    found = prediction(placement=PLACEMENT)
    layers, _ = expert_layers_per_stage(found.design, found.costs.layers)
    hidden, ffn = found.design.model.hidden, found.design.model.ffn_hidden
    expert = 2 * hidden * ffn + ffn + hidden  # two matrices and their biases

    weights = bytes_by_device(found, "optimizer")
    assert weights[0] - weights[1] == pytest.approx(8 * layers * 3 * expert)  # AdamW: two states of 4 bytes
    assert weights[0] == weights[4], "replicas along dp hold the same"
    assert weights[1] == weights[2] != weights[3]


def test_a_device_keeps_the_activations_of_the_rows_of_its_experts() -> None:
    load = tuple(np.linspace(1, 2, 16) / np.linspace(1, 2, 16).sum())
    drawn = load_design(example("16-gpt2-moe"))
    assert drawn.model.moe
    dropless = drawn.model.model_copy(update={"moe": drawn.model.moe.model_copy(update={"capacity_factor": None})})
    experts = drawn.experts.model_copy(update={"load": load})
    found = predict(drawn.model_copy(update={"model": dropless, "experts": experts}))

    activations = bytes_by_device(found, "activations")
    assert activations[0] < activations[1] < activations[2] < activations[3]
    assert len(set(bytes_by_device(found, "weights").values())) == len(found.design.meshes)


def test_equal_devices_of_different_meshes_are_joined() -> None:
    found = predict(load_design(example("08-gpipe-against-1f1b")))

    joined = join_equal_devices(found.device_memory)
    assert [(group.meshes, group.devices) for group in joined] == [
        (("A",), (0,)),
        (("B", "C"), (1, 2)),
        (("D",), (3,)),
    ]


def test_equal_groups_of_one_mesh_are_joined_under_its_name() -> None:
    held = {"weights": 1.0}
    joined = join_equal_devices([DeviceMemory(("A",), (0, 3), held), DeviceMemory(("A",), (1, 2), held)])

    assert joined == [DeviceMemory(("A",), (0, 1, 2, 3), held)]
