"""Several tensors in one plan: one order and one choice of senders for the slices of all tensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwave.engine.cli.main import main
from meshwave.engine.document.transfer_document import TransferListSpec, parse_transfer, parse_transfers
from meshwave.engine.findings import DesignError
from meshwave.engine.predict.transfer_comparison import transfer_comparison_json
from meshwave.engine.resharding import Link, Links, Load, Mesh, Tensor, orderings, plan_joint_transfer, strategies
from tests.engine.resharding.test_moves import sides

INTRA, INTER = Link(1e-5, 4e10), Link(5e-5, 1.25e9)
SPEC: dict[str, Any] = {
    "format": "meshwave-transfer/1",
    "tensors": [
        {"name": "up", "shape": [16, 8], "item_bytes": 2, "source_spec": ["S01", "R"], "destination_spec": ["R", "S0"]},
        {"shape": [8, 16], "item_bytes": 4, "source_spec": ["S1", "S0"], "destination_spec": ["S0", "R"]},
        {"name": "grad", "shape": [8], "source_spec": ["S0"], "source_partial": [1], "destination_spec": ["R"]},
    ],
    "source": {"shape": [2, 2], "ranks": [0, 1, 2, 3], "hosts": [0, 0, 1, 1]},
    "destination": {"shape": [2, 2], "ranks": [4, 5, 6, 7], "hosts": [2, 2, 3, 3]},
    "links": {
        "intra_node": {"latency_s": 1e-5, "bandwidth": 4e10},
        "inter_node": {"latency_s": 5e-5, "bandwidth": 1.25e9},
    },
}


@st.composite
def load_lists(draw: st.DrawFn) -> list[Load]:
    """Draw up to four tensors, each between its own meshes."""
    hosts = {rank: rank // 2 for rank in range(16)}
    found = []
    for number in range(draw(st.integers(1, 4))):
        shape = tuple(draw(st.lists(st.sampled_from([0, 1, 3, 8]), max_size=2)))
        ends = (draw(sides(len(shape), list(pool), hosts)) for pool in (range(8), range(8, 16)))
        found.append(Load(Tensor(shape, draw(st.sampled_from([1, 2, 4]))), *ends, f"w{number}"))
    return found


@pytest.mark.slow
@given(load_lists(), st.sampled_from([*strategies, None]), st.sampled_from(list(orderings)))
def test_every_tensor_has_all_its_slices_and_no_plan_of_one_is_longer(
    loads: list[Load], strategy: str | None, ordering: str
) -> None:
    """Slices share NICs: no single tensor takes longer than all together, which take no longer than one after another."""
    links = Links(INTRA, INTER, {rank: rank // 2 for rank in range(16)})
    made = plan_joint_transfer(loads, links, strategy=strategy, ordering=ordering)

    name = made.plan.strategy
    alone = [plan_joint_transfer([load], links, strategy=name, ordering=ordering) for load in loads]
    for number, (load, own) in enumerate(zip(loads, alone, strict=True)):
        slices = [task for task in made.tasks if task.tensor == number]
        assert [task.box for task in slices] == [task.box for task in own.tasks]
        assert sum(task.bytes for task in slices if len(load.destination_boxes)) <= load.tensor.bytes
    assert sorted(each.task for each in made.plan.tasks) == list(range(len(made.tasks)))
    assert made.plan.makespan_s >= max(each.plan.bound_s for each in alone) * (1 - 1e-9)
    if ordering in ("naive", "ensemble"):
        assert made.plan.makespan_s <= sum(each.plan.makespan_s for each in alone) * (1 + 1e-9)


def test_a_joint_plan_uses_nics_that_separate_plans_leave_idle() -> None:
    """Each tensor is on both hosts and is sent to one host.

    Alone, each takes two seconds of that host's NIC while the other host receives nothing; in one plan both take no
    longer than one.
    """
    mesh = Mesh((2,), (0, 1), (0, 1))
    links = Links(Link(), Link(0.0, 1e6), {0: 0, 1: 1, 2: 2, 3: 3})
    loads = [
        Load(Tensor((2, 500_000), 1), (mesh, ("S0", "R")), (Mesh((1,), (rank,), (rank,)), ("R", "R")))
        for rank in (2, 3)
    ]
    alone = [plan_joint_transfer([load], links).plan.makespan_s for load in loads]
    both = plan_joint_transfer(loads, links).plan

    assert alone == pytest.approx([1.0, 1.0]) and both.makespan_s == pytest.approx(1.0) and both.is_optimal
    assert plan_joint_transfer(loads, links, ordering="naive").plan.makespan_s > 1.4


def test_senders_are_balanced_over_all_tensors() -> None:
    """Eight copies of one small tensor, each held by both hosts: each host sends half of them."""
    mesh = Mesh((2,), (0, 1), (0, 1))
    links = Links(Link(), Link(0.0, 1e6), {0: 0, 1: 1, 2: 2, 3: 3})
    loads = [
        Load(Tensor((1000,), 1), (mesh, ("R",)), (Mesh((1,), (2 + n % 2,), (2 + n % 2,)), ("R",))) for n in range(8)
    ]

    for ordering in ("load-balance", "ensemble"):
        made = plan_joint_transfer(loads, links, ordering=ordering)
        senders = [each.sender for each in made.plan.tasks]
        assert senders.count(0) == senders.count(1) == 4
    assert made.plan.makespan_s == pytest.approx(4e-3)


@pytest.mark.slow
def test_the_command_reports_each_tensor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "spec.json"
    path.write_text(json.dumps(SPEC))

    assert main(["reshard", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert main(["reshard", str(path)]) == 0
    words = capsys.readouterr().out.splitlines()

    tensors = found["tensors"]
    assert [each["name"] for each in tensors] == ["up", "tensor 1", "grad"]
    assert [each["bytes"] for each in tensors] == [256, 512, 32] and found["bytes"] == 800
    assert all(sum(task["bytes"] for task in each["unit_tasks"]) == each["bytes"] for each in tensors)
    assert tensors[2]["unit_tasks"][0]["addends"] == [[0, 1]]
    assert len(found["plans"]) == len(strategies) * len(orderings)
    for plan in found["plans"]:
        told = plan.get("tensors", tensors)
        numbers = sorted((each["tensor"], each["task"]) for each in plan["tasks"])
        assert numbers == [(n, task) for n, each in enumerate(told) for task in range(len(each["unit_tasks"]))]
        assert plan["simulated_s"] > 0 and plan["reduce_s"] > 0
    assert any("tensors" in plan for plan in found["plans"] if plan["strategy"] == "rewrite-allgather")
    assert words[0] == f"800 B in 3 tensors, {sum(len(each['unit_tasks']) for each in tensors)} unit tasks"
    assert words[1].startswith("  up: 256 B in ") and words[-1].startswith("fastest, simulated with shared links")


def test_a_list_of_one_tensor_equals_a_single_transfer() -> None:
    one = parse_transfers(json.dumps({**SPEC, "tensors": SPEC["tensors"][:1]}))
    ends = {
        "source": {**SPEC["source"], "spec": ["S01", "R"]},
        "destination": {**SPEC["destination"], "spec": ["R", "S0"]},
    }
    single = {key: value for key, value in SPEC.items() if key != "tensors"} | ends
    alone = parse_transfer(json.dumps({**single, "tensor": {"shape": [16, 8], "item_bytes": 2}}))

    assert isinstance(one, TransferListSpec)
    for plan, other in zip(
        transfer_comparison_json(one)["plans"], transfer_comparison_json(alone)["plans"], strict=True
    ):
        assert (plan["makespan_s"], plan["simulated_s"]) == (other["makespan_s"], other["simulated_s"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tensors": []}, "tensors: "),
        ({"tensor": {"shape": [1]}}, "tensor: unknown key 'tensor'"),
        ({"tensors": [{**SPEC["tensors"][0], "source_spec": ["S0", "S0"]}]}, "tensors[0].source_spec[1]: axis 0 shards both dim 0 and dim 1"),
        ({"tensors": [SPEC["tensors"][0], {**SPEC["tensors"][2], "source_partial": [0]}]}, "tensors[1].source_partial: axis 0"),
        ({"tensors": [{**SPEC["tensors"][0], "destination_spec": ["S2", "R"]}]}, "tensors[0].destination_spec[0]: S2 names"),
        ({"tensors": SPEC["tensors"] * 3000}, "too large to plan: 9000 tensors on 4 x 4 ranks"),
    ],
)  # fmt: skip
def test_problems_are_reported_at_their_location(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(DesignError) as error:
        parse_transfers(json.dumps({**SPEC, **changes}))
    assert words in str(error.value)


def test_several_tensors_are_refused_by_commands_for_one() -> None:
    with pytest.raises(DesignError, match="plan several with meshwave reshard"):
        parse_transfer(json.dumps(SPEC))
