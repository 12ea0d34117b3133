"""Which device and backend a process takes, and what it sets before the first look at a GPU."""

from __future__ import annotations

import os

import pytest
import torch
import torch.distributed as dist

from meshwave.engine.runtime.communication.world import _choose
from meshwave.engine.runtime.device.streams import STREAM_ENVIRONMENT, set_stream_environment
from meshwave.engine.runtime.processes.worker import _of_messages


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> int:
    """As many GPUs as a test asks for, as far as counting them goes."""
    found = torch.device("cuda") if request.param else None
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: found)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: request.param)
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    return int(request.param)


@pytest.mark.parametrize(
    ("gpus", "neighbours", "how", "devices", "backend", "words"),
    [
        (0, 2, {}, ["cpu", "cpu"], "gloo", "no GPU"),
        (2, 2, {}, ["cuda:0", "cuda:1"], "nccl", "messages go through NCCL"),
        (2, 4, {}, ["cuda:0", "cuda:1", "cuda:0", "cuda:1"], "gloo", "so times are no evidence for a GPU each"),
        (2, 2, {"can_send": False}, ["cuda:0", "cuda:1"], "gloo", "NCCL would go past the emulated links"),
        (2, 2, {"computes": False}, ["cuda:0", "cuda:1"], "nccl", "messages go through NCCL"),
        (1, 2, {"computes": False}, ["cpu", "cpu"], "gloo", "2 processes share 1 GPU and NCCL takes one a GPU"),
    ],
    indirect=["gpus"],
)
def test_processes_take_a_gpu_each_or_share_them_and_say_so(
    gpus: int, neighbours: int, how: dict[str, bool], devices: list[str], backend: str, words: str
) -> None:
    """Those of a rehearsal compute nothing: a GPU that they would have to share is left alone."""
    found = [_choose(local, neighbours, **how) for local in range(neighbours)]

    assert [str(device) for device, _, _ in found] == devices
    assert {each for _, each, _ in found} == {backend}
    assert all(words in note for _, _, note in found)
    told = [_of_messages(note) for _, _, note in found]
    assert all(each.startswith("messages go") for each in told)
    assert how.get("computes", True) or not [each for each in told if "evidence" in each]


def test_streams_are_kept_apart_unless_a_person_wants_it_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    (first, _), (other, value) = STREAM_ENVIRONMENT.items()
    monkeypatch.setenv(first, "1")
    monkeypatch.setenv(other, "")
    monkeypatch.delenv(other)  # and as it was in the end

    set_stream_environment()

    assert os.environ[first] == "1" and os.environ[other] == value
