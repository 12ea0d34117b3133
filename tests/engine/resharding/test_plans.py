"""Strategies compared with their formulas, orderings with exhaustive enumeration, plans with the paper's cases."""

from __future__ import annotations

import json
from itertools import permutations, product
from math import ceil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwave.engine.cli.main import main
from meshwave.engine.costs.boundary_transfers import boundary_seconds
from meshwave.engine.document import load_design
from meshwave.engine.document.transfer_document import parse_transfer
from meshwave.engine.files import example
from meshwave.engine.lowering.lower import lower
from meshwave.engine.predict.boundaries import boundary_transfer_spec, find_boundary
from meshwave.engine.resharding import (
    Job,
    Link,
    Links,
    Load,
    Mesh,
    Tensor,
    candidate_transfers,
    lower_bound,
    orderings,
    plan,
    run_in_order,
    strategies,
    unit_tasks,
)

INTRA, INTER = Link(1e-5, 4e10), Link(5e-5, 1.25e9)


def transfer_to_hosts(hosts: int, per_host: int, elements: int = 1 << 20) -> tuple[tuple[object, ...], Links]:
    """Return a transfer from one device to all devices of some hosts, fully replicated."""
    source = Mesh((1,), (0,), (0,))
    ranks = tuple(range(1, 1 + hosts * per_host))
    destination = Mesh((hosts, per_host), ranks, tuple(1 + (rank - 1) // per_host for rank in ranks))
    links = Links(INTRA, INTER, {0: 0, **dict(zip(ranks, destination.hosts, strict=True))})
    return unit_tasks(Tensor((elements,), 4), source, ("R",), destination, ("R",)), links


@pytest.mark.parametrize(("hosts", "per_host"), [(1, 1), (1, 4), (3, 2), (4, 3)])
def test_each_strategy_takes_the_time_of_its_formula(hosts: int, per_host: int) -> None:
    (task,), links = transfer_to_hosts(hosts, per_host)
    n, m = task.bytes, hosts * per_host
    found = {name: strategies[name]().latency(task, 0, links, 64).seconds for name in strategies}
    assert found["send-recv"] == pytest.approx(m * (5e-5 + n / 1.25e9))
    piece, inside = ceil(task.elements / per_host) * 4, per_host - 1
    last = n - (per_host - 1) * piece
    sent = hosts * ((per_host - 1) * (5e-5 + piece / 1.25e9) + 5e-5 + last / 1.25e9)
    assert found["local-allgather"] == pytest.approx(sent + inside * (1e-5 + piece / 4e10))
    piece = ceil(task.elements / m) * 4
    sizes = [max(0, min(piece, n - number * piece)) for number in range(m)]
    edge = 5e-5 + piece / 1.25e9 if hosts > 1 else 1e-5 + piece / 4e10
    assert found["global-allgather"] == pytest.approx(sum(5e-5 + s / 1.25e9 for s in sizes if s) + (m - 1) * edge)
    far, near = 5e-5 + n / 64 / 1.25e9, 1e-5 + n / 64 / 4e10
    assert found["broadcast"] == pytest.approx(hosts * far + hosts * inside * near + 63 * far)


def test_the_best_number_of_chunks_is_the_smallest_of_the_fastest() -> None:
    (task,), links = transfer_to_hosts(3, 2)
    best = strategies["broadcast"]().latency(task, 0, links)
    tried = [strategies["broadcast"]().latency(task, 0, links, k).seconds for k in range(1, 1025)]
    assert best.seconds == min(tried) and best.chunks == tried.index(min(tried)) + 1
    (task,), links = transfer_to_hosts(1, 1)
    assert strategies["broadcast"]().latency(task, 0, links).chunks == 1


@pytest.mark.parametrize("strategy", ["broadcast", "hierarchical"])
def test_more_chunks_than_elements_are_priced_as_they_are_sent(strategy: str) -> None:
    """Two elements are sent in two messages, whatever number of chunks is requested."""
    (task,), links = transfer_to_hosts(3, 2, elements=2)
    member = strategies[strategy]()
    wanted = member.latency(task, 0, links, 8)
    assert wanted == member.latency(task, 0, links, 2) and wanted.chunks == 2
    assert list(member.legs(task, 0, links, 8)) == list(member.legs(task, 0, links, wanted.chunks))


def test_hierarchical_is_fastest_for_full_hosts_and_small_messages() -> None:
    (task,), links = transfer_to_hosts(4, 8, elements=256)
    seconds = {name: strategies[name]().latency(task, 0, links).seconds for name in strategies}
    assert seconds["hierarchical"] < seconds["broadcast"]


@st.composite
def problems(draw: st.DrawFn) -> list[Job]:
    def job() -> Job:
        hosts = sorted(draw(st.sets(st.integers(0, 2), min_size=1, max_size=2)))
        receivers = tuple(sorted(draw(st.sets(st.integers(3, 6), min_size=1, max_size=2))))
        seconds = float(draw(st.integers(1, 8)))
        return Job(int(seconds), dict.fromkeys(hosts, seconds), receivers)

    return [job() for _ in range(draw(st.integers(1, 5)))]


def ends(jobs: list[Job], order: list[tuple[int, int]]) -> float:
    return max(placed.end for placed in run_in_order(jobs, order))


@given(problems())
def test_the_search_equals_an_exhaustive_search(jobs: list[Job]) -> None:
    best = min(
        ends(jobs, [(number, hosts[number]) for number in order])
        for hosts in product(*(job.options for job in jobs))
        for order in permutations(range(len(jobs)))
    )
    for name in orderings:
        answer = orderings[name]().solve(jobs)
        assert sorted(number for number, _ in answer.order) == list(range(len(jobs)))
        length = ends(jobs, answer.order)
        assert length >= best - 1e-9 and lower_bound(jobs) <= best + 1e-9
        assert not answer.is_optimal or length == pytest.approx(best)
        assert name not in ("dfs", "ensemble") or length == pytest.approx(best)
        assert_no_clash(jobs, answer.order)


def assert_no_clash(jobs: list[Job], order: list[tuple[int, int]]) -> None:
    placed = run_in_order(jobs, order)
    for one, other in permutations(placed, 2):
        if one.host == other.host or set(jobs[one.job].receivers) & set(jobs[other.job].receivers):
            assert one.end <= other.start + 1e-9 or other.end <= one.start + 1e-9


def test_the_bound_of_the_released_code_misses_the_optimum() -> None:
    """Counterexample to the released code, which stops at 16."""
    jobs = [
        Job(seconds, dict.fromkeys(hosts, float(seconds)), (receiver,))
        for seconds, hosts, receiver in (
            (7, (0, 1), 5), (2, (0, 1), 6), (5, (0,), 5), (4, (0,), 6), (4, (0, 1), 7), (8, (1,), 6)
        )
    ]  # fmt: skip
    answer = orderings["dfs"]().solve(jobs)
    assert ends(jobs, answer.order) == 15 and answer.is_optimal


S = (1024, 1024, 512)
CASES = {
    1: ((2, 4), (2, 4), S, "S0 R R", "S0 R R", 2, 1, 1),
    2: ((2, 4), (2, 4), S, "R R R", "S0 R R", 2, 2, 1),
    3: ((2, 4), (2, 4), S, "R S0 R", "S0 R R", 4, 1.5, 1.5),
    4: ((2, 4), (2, 4), S, "R S01 R", "S01 R R", 64, 1.9, 1.9),
    5: ((2, 4), (2, 4), S, "S1 R R", "S0 R R", 4, 2, 1.5),
    6: ((2, 4), (3, 4), (3072, 1024, 170), "S0 R R", "S0 R R", 4, 2, 2),
    7: ((1, 4), (2, 4), S, "S1 R R", "R R R", 4, 1, 1),
    9: ((2, 4), (2, 4), S, "R S0 R", "R R S0", 4, 1.5, 1.5),
}
"""Released cases of the paper: meshes, tensor, specs and unit tasks.

The last two values are speed-ups that count bandwidth only: of senders and order together over the naive plan, and of
the order alone over the balanced plan.
"""


@pytest.mark.parametrize("case", CASES)
def test_the_released_cases_have_the_modelled_speed_ups(case: int) -> None:
    rows, columns, shape, source_spec, spec, tasks, of_naive, of_balanced = CASES[case]
    size = rows[0] * rows[1]
    source = Mesh(rows, tuple(range(size)), tuple(rank // 4 for rank in range(size)))
    count = columns[0] * columns[1]
    destination = Mesh(columns, tuple(range(size, size + count)), tuple(10 + rank // 4 for rank in range(count)))
    host = dict(zip((*source.ranks, *destination.ranks), (*source.hosts, *destination.hosts), strict=True))
    links = Links(Link(), Link(0.0, 1.25e9), host)
    ends = (source, source_spec.split()), (destination, spec.split())
    found = unit_tasks(Tensor(shape, 4), *ends[0], *ends[1])
    made = {name: plan(Tensor(shape, 4), *ends, links, ordering=name, chunks=1024) for name in orderings}
    assert len(found) == tasks
    assert made["ensemble"].is_optimal
    best = made["ensemble"].makespan_s
    assert made["naive"].makespan_s / best == pytest.approx(of_naive, rel=0.02)
    assert made["load-balance"].makespan_s / best == pytest.approx(of_balanced, rel=0.02)


@pytest.mark.slow
def test_planning_is_deterministic() -> None:
    source = Mesh((4, 2), tuple(range(8)), (0, 0, 1, 1, 2, 2, 3, 3))
    destination = Mesh((3, 2), tuple(range(8, 14)), (4, 4, 5, 5, 6, 6))
    links = Links(INTRA, INTER, dict(zip(range(14), (*source.hosts, *destination.hosts), strict=True)))
    loads = [Load(Tensor((37, 11), 4), (source, ("S0", "S1")), (destination, ("S1", "S0")))]
    assert list(candidate_transfers(loads, links)) == list(candidate_transfers(loads, links))


SPEC = {
    "format": "meshwave-transfer/1",
    "tensor": {"shape": [13, 6], "item_bytes": 2},
    "source": {"shape": [2, 2], "ranks": [0, 1, 2, 3], "hosts": [0, 0, 1, 1], "spec": ["S0", "R"]},
    "destination": {"shape": [3, 2], "ranks": [4, 5, 6, 7, 8, 9], "hosts": [2, 2, 3, 3, 4, 4], "spec": ["S0", "R"]},
    "links": {"intra_node": {"latency_s": 0, "bandwidth": None}, "inter_node": {"latency_s": 0, "bandwidth": 1}},
    "chunks": 64,
}


def ask(tmp_path: Path, capsys: pytest.CaptureFixture[str], **changes: object) -> tuple[int, str, str]:
    path = tmp_path / "spec.json"
    path.write_text(json.dumps({**SPEC, **changes}))
    status = main(["reshard", str(path), "--json"])
    said = capsys.readouterr()
    return status, said.out, said.err


def test_the_command_reports_tasks_and_plans(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = ask(tmp_path, capsys)
    found = json.loads(out)
    assert status == 0
    assert [task["bytes"] for task in found["unit_tasks"]] == [60, 24, 36, 36]
    assert found["unit_tasks"][1] == {"box": [[5, 7], [0, 6]], "bytes": 24, "senders": [0, 1], "receivers": [6, 7]}
    made = {(plan["strategy"], plan["ordering"]): plan for plan in found["plans"]}
    assert made["broadcast", "naive"]["makespan_s"] == pytest.approx(156)
    assert made["broadcast", "ensemble"]["makespan_s"] == pytest.approx(84)
    assert made["broadcast", "ensemble"]["optimal"]
    assert made["broadcast", "naive"]["tasks"][2] == {
        "task": 2, "sender": 2, "start_s": pytest.approx(84), "end_s": pytest.approx(120), "chunks": 18
    }  # fmt: skip


def test_the_text_lists_sent_and_kept_slices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    same = {"shape": [4], "ranks": [1, 0, 2, 3], "hosts": [0, 0, 1, 1], "spec": ["S0", "R"]}
    path = tmp_path / "spec.json"
    path.write_text(json.dumps({**SPEC, "source": {**same, "ranks": [0, 1, 2, 3]}, "destination": same}))

    assert main(["reshard", str(path)]) == 0

    said = capsys.readouterr().out.splitlines()
    assert said[0] == "156 B in 4 unit tasks"
    assert said[1:4] == [
        "  task 0: [0:4 0:6] 48 B from 0 to 1",
        "  task 1: [4:8 0:6] 48 B from 1 to 0",
        "  task 2: [8:12 0:6] 48 B stays on 2",
    ]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"chunks": 0}, "chunks: 0 should be at least 1"),
        ({"source": {**SPEC["source"], "hosts": [0]}}, "source.hosts: a mesh of 2 x 2 has 4 ranks, and 1 hosts"),  # type: ignore[dict-item]
        ({"source": {**SPEC["source"], "ranks": [0, 0, 1, 2]}}, "source.ranks[1]: rank 0 is listed twice"),  # type: ignore[dict-item]
        ({"source": {**SPEC["source"], "spec": ["S0", "S0"]}}, "source.spec[1]: axis 0 shards both dim 0 and dim 1"),  # type: ignore[dict-item]
        ({"format": "meshwave-transfer/9"}, "format: unknown value 'meshwave-transfer/9'"),
        ({"extra": 1}, "extra: unknown key 'extra'. Known: chunks, destination, format"),
    ],
)
def test_problems_of_a_transfer_are_reported_at_their_location(
    changes: dict[str, object], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, error = ask(tmp_path, capsys, **changes)
    assert status == 2
    assert words in error
    assert json.loads(out)["problems"]


# ---- what crosses a boundary of a design ----


@pytest.mark.parametrize(("name", "wanted"), [("20-unequal-meshes", "A:B"), ("18-u-transformer", "0:3")])
def test_a_boundary_of_a_design_has_the_costs_of_the_design(
    name: str, wanted: str, capsys: pytest.CaptureFixture[str]
) -> None:
    design = load_design(example(name))

    assert main(["reshard", name, "--boundary", wanted, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)

    source, destination, tensors = find_boundary(design, lower(design), wanted)
    how = design.transfer.strategy, design.transfer.ordering
    (own,) = (plan for plan in found["plans"] if (plan["strategy"], plan["ordering"]) == how)
    assert own["simulated_s"] == pytest.approx(boundary_seconds(design, source, destination, tensors))
    assert own["played_s"] == own["simulated_s"], "scripts may read the key of earlier versions"
    assert parse_transfer(json.dumps(found["spec"])) == boundary_transfer_spec(design, source, destination, tensors)
    assert found["boundary"] == [design.meshes[rank].name for rank in (source, destination)]


def test_a_boundary_is_represented_by_its_largest_message() -> None:
    """Skip connections of three blocks share one message."""
    design = load_design(example("18-u-transformer"))

    assert find_boundary(design, lower(design), "A:D") == (0, 3, 3)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            ["20-unequal-meshes"],
            "specify one boundary of the design with --boundary A:B; the boundaries are A:B, B:A\n",
        ),
        (
            ["20-unequal-meshes", "--boundary", "A"],
            "--boundary takes two meshes such as A:B, not 'A'; the boundaries are A:B",
        ),
        (["01-first-wave", "--boundary", "A:C"], "mesh A sends nothing to mesh C; the boundaries are A:B, B:A, B:C"),
        (["01-first-wave", "--boundary", "A:x"], "there is no mesh called 'x'. Known: A, B, C, D."),
        (["15-bert-base-moe"], "this design sends nothing between meshes"),
        (["nowhere"], "no file and no example has this name"),
    ],
)
def test_ranks_without_a_boundary_are_refused(capsys: pytest.CaptureFixture[str], line: list[str], said: str) -> None:
    assert main(["reshard", *line]) == 2
    assert said in capsys.readouterr().err


def test_a_transfer_document_has_no_boundary_option(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "spec.json"
    path.write_text(json.dumps(SPEC))

    assert main(["reshard", str(path), "--boundary", "A:B"]) == 2
    assert "--boundary applies to designs only" in capsys.readouterr().err
