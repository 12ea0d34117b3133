"""Tests of the device and backend that a process uses."""

from __future__ import annotations

import os

import pytest
import torch
import torch.distributed as dist

from meshwave.engine.runtime.communication.world import choose_device
from meshwave.engine.runtime.device.streams import STREAM_ENVIRONMENT, set_stream_environment


@pytest.fixture
def gpu_count(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> int:
    """Make torch report the number of GPUs that the test requests."""
    found = torch.device("cuda") if request.param else None
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: found)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: request.param)
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    return int(request.param)


@pytest.mark.parametrize(
    ("gpu_count", "local_size", "options", "devices", "backend", "text"),
    [
        (0, 2, {}, ["cpu", "cpu"], "gloo", "no GPU"),
        (2, 2, {}, ["cuda:0", "cuda:1"], "nccl", "messages use NCCL"),
        (2, 4, {}, ["cuda:0", "cuda:1", "cuda:0", "cuda:1"], "gloo", "times do not represent one GPU per process"),
        (2, 2, {"emulated": True}, ["cuda:0", "cuda:1"], "gloo", "NCCL would bypass the emulated links"),
        (2, 2, {"computes": False}, ["cuda:0", "cuda:1"], "nccl", "messages use NCCL"),
        (1, 2, {"computes": False}, ["cpu", "cpu"], "gloo", "2 processes share 1 GPU; NCCL needs one GPU per process"),
    ],
    indirect=["gpu_count"],
)
def test_each_process_uses_a_gpu_of_its_own_or_a_shared_one(
    gpu_count: int, local_size: int, options: dict[str, bool], devices: list[str], backend: str, text: str
) -> None:
    """Processes of a dry run do not compute, so they do not use a GPU that they would have to share."""
    selected = [choose_device(local_rank, local_size, **options) for local_rank in range(local_size)]

    assert [str(device) for device, *_ in selected] == devices
    assert {each for _, each, *_ in selected} == {backend}
    assert all(text in f"{computation}; {communication}" for *_, computation, communication in selected)


def test_environment_variables_set_by_the_user_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    (first, _), (other, value) = STREAM_ENVIRONMENT.items()
    monkeypatch.setenv(first, "1")
    monkeypatch.setenv(other, "")
    monkeypatch.delenv(other)  # monkeypatch restores the original value

    set_stream_environment()

    assert os.environ[first] == "1" and os.environ[other] == value
