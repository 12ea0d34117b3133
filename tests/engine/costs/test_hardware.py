"""The table of devices and node types."""

from __future__ import annotations

import pytest

from meshwave.engine.costs.hardware import data_sheets, node_types
from meshwave.engine.costs.presets import presets
from meshwave.engine.document.devices import device_kinds


@pytest.mark.parametrize("name", data_sheets())
def test_a_device_has_a_source_and_more_bandwidth_to_its_memory_than_to_others(name: str) -> None:
    sheet = data_sheets()[name]

    assert sheet.source
    assert sheet.device.name == name
    assert sheet.memory_bandwidth > sheet.link_bandwidth


def test_devices_with_fitted_constants_are_in_the_table_once() -> None:
    assert set(device_kinds()) < set(data_sheets())


@pytest.mark.parametrize("name", node_types())
def test_a_node_type_is_a_cluster_of_a_known_device(name: str) -> None:
    node = node_types()[name]

    cluster = node.cluster(3)

    assert cluster.devices == 3 * node.devices_per_node
    assert cluster.device == data_sheets()[node.device].device
    assert node.source


@pytest.mark.parametrize("name", presets())
def test_a_preset_states_the_data_sheet_of_its_device(name: str) -> None:
    device = presets()[name].cluster.device
    sheet = data_sheets().get(device.name)

    assert sheet is None or device == sheet.device.model_copy(update={"efficiency": device.efficiency})
