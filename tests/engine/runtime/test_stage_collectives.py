"""Tests of the collectives inside stages of a dry run: they send the bytes of the cost model."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

torch = pytest.importorskip("torch")

from meshwave.engine.bench.accuracy.cases import DEEP, MOE, SCHEDULES, case_document  # noqa: E402
from meshwave.engine.costs import layers_per_stage  # noqa: E402
from meshwave.engine.costs.collective_flows import (  # noqa: E402
    blocks_of_stages,
    exchange_usages,
    gather_messages,
    reduction_messages,
    step_messages,
)
from meshwave.engine.costs.device_sizes import device_sizes  # noqa: E402
from meshwave.engine.costs.fabric import Fabric  # noqa: E402
from meshwave.engine.document import Design, parse_design  # noqa: E402
from meshwave.engine.lowering.lower import lower  # noqa: E402
from meshwave.engine.program.action import Action, Op  # noqa: E402
from meshwave.engine.runtime.communication.groups import Group  # noqa: E402
from meshwave.engine.runtime.dry_run import stage_collectives  # noqa: E402
from meshwave.engine.runtime.dry_run.stage_collectives import StageCollectives  # noqa: E402
from meshwave.engine.runtime.execution.job import Job  # noqa: E402

pytestmark = pytest.mark.torch

EXPERTS = {**DEEP, "layers": 8, "moe": MOE}
DESIGNS: dict[str, dict[str, Any]] = {
    "tp 2": {"meshes": ((1, 2),) * 2, "model": DEEP},
    "tp 4 x dp 2": {"meshes": ((2, 4),), "model": DEEP},
    "cp 3": {"meshes": ((1, 1),) * 2, "cp": 3, "model": {**DEEP, "sequence": 96}},
    "cp 2 x tp 2": {"meshes": ((1, 2),), "cp": 2, "model": DEEP, "training": {"context_parallel": "all_gather"}},
    "experts": {"meshes": ((2, 1),) * 2, "model": EXPERTS, "experts": {"ep": 2}},
    "experts and tp": {"meshes": ((2, 2),), "model": EXPERTS, "experts": {"schedule": "parm-s1", "ep": 2, "esp": 2}},
    "folded experts": {"meshes": ((1, 2),) * 2, "model": EXPERTS, "experts": {"schedule": "ppmoe"}},
}
RINGS = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0}


def make_design(name: str) -> Design:
    return parse_design(case_document(SCHEDULES["1f1b"], per_node=2, **DESIGNS[name]))


class Recorder:
    """Counts the bytes that leave a process instead of sending them."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.sent = 0.0
        for name in RINGS:
            patch.setitem(stage_collectives.STARTS, name, partial(self._ring, name))  # type: ignore[arg-type]
        patch.setattr(stage_collectives, "start_all_to_all", self._all_to_all)
        patch.setattr(stage_collectives, "start_ring_shift", self._shift)

    def _ring(self, name: str, place: Any, items: int) -> Any:
        n = place.group.size
        self.sent += RINGS[name] * (n - 1) / n * items * 4
        return SimpleNamespace(wait=lambda: None)

    def _shift(self, group: Group, output: Any, input: Any) -> Any:
        assert output.shape == input.shape
        self.sent += input.nbytes
        return SimpleNamespace(wait=lambda: None)

    def _all_to_all(self, group: Group, output: Any, input: Any, received: list[int], sent: list[int]) -> Any:
        assert len(input) == sum(sent)
        assert len(output) == sum(received)
        assert sent[group.index] == received[group.index] == 0
        self.sent += input.nbytes
        return SimpleNamespace(wait=lambda: None)


def collectives(design: Design, process: int, ratio: float = 1.0) -> StageCollectives:
    program, layers = lower(design), layers_per_stage(design)
    layout = Job(design, program, layers).layout

    def groups(members: Any) -> dict[tuple[int, ...], Group]:
        return {group: Group(group, group.index(process)) for group in members if process in group}

    world = SimpleNamespace(process=process, device=torch.device("cpu"), make_groups=groups)
    return StageCollectives(design, layout, layers, cast(Any, world), ratio, {})


@pytest.mark.parametrize("parts", [1, 4])
@pytest.mark.parametrize("op", [Op.F, Op.B])
@pytest.mark.parametrize("name", DESIGNS)
def test_all_bytes_of_the_cost_model_are_sent(monkeypatch: pytest.MonkeyPatch, name: str, op: Op, parts: int) -> None:
    design, recorder = make_design(name), Recorder(monkeypatch)

    for process in range(len(design.meshes[0].devices)):
        for start in collectives(design, process).bind([Action(op, 0, 0)], 1 / parts):
            start().wait()

    layers = layers_per_stage(design)
    stage = blocks_of_stages(design, layers)[0]
    usage = exchange_usages(Fabric(design.cluster), design, design.meshes[0], stage)[op == Op.B]
    modelled = sum(size for port, size in usage.items() if port.kind in ("link-out", "nic-out"))
    assert modelled > 0
    assert parts * recorder.sent == pytest.approx(modelled, rel=0.01)


@pytest.mark.parametrize("name", ["dp 2 x tp 2", "copies of stages", "experts"])
def test_a_step_gathers_the_updated_weights(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    shapes = {"dp 2 x tp 2": {"meshes": ((2, 2),) * 2}, "copies of stages": {"meshes": ((2, 1),) * 2}}
    options = shapes.get(name, DESIGNS["experts"])
    schedule = SCHEDULES["chimera" if name == "copies of stages" else "1f1b"]
    drawn = case_document(schedule, per_node=2, **{"model": DEEP, "training": {"sharding": "optimizer"}, **options})
    design, recorder = parse_design(drawn), Recorder(monkeypatch)
    program, layers = lower(design), layers_per_stage(design)

    for process in range(len(design.meshes[0].devices)):
        for start in collectives(design, process).bind([Action(Op.STEP, -1, -1)], 1.0):
            start().wait()

    messages = step_messages(design, program, device_sizes(design, program, layers))[0]
    assert recorder.sent == pytest.approx(messages.bytes.sum(), rel=0.01)
    assert recorder.sent > 0


@pytest.mark.parametrize("op", [Op.F, Op.B, Op.I, Op.W])
@pytest.mark.parametrize("name", ["dp 2 x tp 2", "experts"])
def test_the_sharded_state_of_a_stage_is_sent_beside_its_computations(
    monkeypatch: pytest.MonkeyPatch, name: str, op: Op
) -> None:
    options = DESIGNS["experts"] if name == "experts" else {"meshes": ((2, 2),) * 2, "model": DEEP}
    sharding = {"sharding": "parameters", "unsharded_stages": 0}
    drawn = case_document({**SCHEDULES["zb-h1"], "recompute": "full"}, per_node=2, **{"training": sharding, **options})
    design, recorder = parse_design(drawn), Recorder(monkeypatch)
    program, layers = lower(design), layers_per_stage(design)
    held = device_sizes(design, program, layers)

    for process in range(len(design.meshes[0].devices)):
        for start in collectives(design, process).bind_beside([Action(op, 0, 0)], 0.5):
            start().wait()

    gathered, scattered = (find(design, program, held)[0].bytes.sum() for find in (gather_messages, reduction_messages))
    expected = {Op.F: gathered, Op.I: 2 * gathered, Op.B: 2 * gathered + scattered, Op.W: gathered + scattered}
    assert recorder.sent == pytest.approx(expected[op] / 2, rel=0.01)


def test_the_ratio_scales_the_bytes_that_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    design, recorder = make_design("tp 2"), Recorder(monkeypatch)

    sent = []
    for ratio in (1.0, 0.25):
        recorder.sent = 0.0
        for start in collectives(design, 0, ratio).bind([Action(Op.F, 0, 0)], 1):
            start().wait()
        sent.append(recorder.sent)

    assert sent[1] == pytest.approx(sent[0] / 4, rel=0.01)


def test_a_weight_gradient_communicates_nothing() -> None:
    assert collectives(make_design("tp 2"), 0).bind([Action(Op.W, 0, 0)], 1) == []
