"""Inputs that failed in the past do not fail again, and the fuzzer finds planted failures."""

from __future__ import annotations

import json
import re
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from meshwave.engine.errors import InputError
from meshwave.engine.units import quantity
from tests.fuzz.__main__ import main
from tests.fuzz.campaign import kept_seeds
from tests.fuzz.mutate import damage_document, mutate_bytes, mutate_json
from tests.fuzz.oracle import Complaint, about_text, complaints_about
from tests.fuzz.reduce import reduced
from tests.fuzz.target import NAMES, target_called
from tests.fuzz.targets.orders import fault_of
from tests.fuzz.worker import Finding, Limits, Lines, Worker

# ---- every target ----


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_sound_inputs_are_accepted_and_what_failed_once_does_not_fail_again(name: str) -> None:
    """If a target refused valid inputs, it would test only the first checks of its reader."""
    target = target_called(name)
    sound = next(iter(target.seeds()))

    with Worker(name) as worker:
        report = worker.examine(sound)
        found = {path.name: worker.examine(path.read_bytes()).findings for path in kept_seeds(name)}

    assert report.accepted
    assert report.findings == ()
    assert {file: findings for file, findings in found.items() if findings} == {}


# ---- the walk that judges orders ----


@pytest.mark.parametrize(
    ("orders", "fault"),
    [
        ([["0F0", "0B0"], ["1F0", "1B0"]], ""),
        ([["0F0", "0I0", "0W0"]], ""),
        ([["0F0", "0B0"], []], "a mesh has no action"),
        ([["0F0", "0I0"]], "stage 0 runs microbatch 0 so often: (1, 0, 1, 0)"),
        ([["0F0", "0B0", "0B0"]], "stage 0 runs microbatch 0 so often: (1, 2, 0, 0)"),
        ([["0F0"], ["0B0"]], "stage 0 runs microbatch 0 on two meshes"),
        ([["0B0", "0F0"]], "deadlock at"),
        ([["0F0", "0B0", "0F1", "0B1"], ["1F1", "1B1", "1F0", "1B0"]], "deadlock at"),
    ],
)
def test_the_walk_knows_a_sound_order_from_others(orders: list[list[str]], fault: str) -> None:
    found = fault_of(orders)

    assert found.startswith(fault)
    assert bool(found) == bool(fault)


# ---- what is a failure ----


def act_that_raises(error: BaseException) -> list[Complaint]:
    def act() -> Iterator[Complaint]:
        raise error
        yield

    return complaints_about(act)


def test_a_refusal_in_words_is_no_failure_and_every_other_exception_is() -> None:
    assert act_that_raises(InputError("mesh A has no device; draw it over one")) == []
    (complaint,) = act_that_raises(KeyError("x"))
    assert complaint.rule.startswith("KeyError in ")


@pytest.mark.parametrize(
    "message",
    [
        "",
        "KeyError('x') was raised",
        "stages should be None",
        "\x1b[31mred",
        "x" * 3_000,
        "{'kind': 'gpt'} is unknown",
        "nan s",
    ],
)
def test_a_message_that_is_not_a_sentence_is_a_failure(message: str) -> None:
    assert act_that_raises(InputError(message))


def test_names_and_json_in_a_message_are_accepted() -> None:
    assert [
        *about_text('input.toml, challenges[0].design: "%s{inf}" should be a plain file name, without folders')
    ] == []
    assert [
        *about_text("1 problem: {\"a\": null} should be a number (Nantes, Infra, 'None')".replace("'None'", "none"))
    ] == []


def test_a_warning_of_numbers_is_a_failure() -> None:
    def act() -> Iterator[Complaint]:
        warnings.warn("overflow encountered", RuntimeWarning, stacklevel=1)
        yield from ()

    assert [complaint.rule for complaint in complaints_about(act)] == ["warning in tests/fuzz/test_fuzz.py"]


# ---- workers ----


@pytest.mark.slow
def test_hangs_memory_exhaustion_and_crashes_are_found_and_the_next_input_is_read() -> None:
    inputs = (b"busy", b"large", b"exit", b"nothing")

    with Worker("trouble", Limits(seconds=1, memory_bytes=10**9)) as worker:
        busy, large, exited, nothing = (worker.examine(each).findings for each in inputs)

    assert [finding.signature for finding in busy] == [("busy", "time limit")]
    assert [finding.rule.partition(" in ")[0] for finding in large] == ["MemoryError"]
    assert exited == (Finding("exit", "process ended", "exit code 3"),)
    assert nothing == ()


def test_lines_are_counted_until_a_call_repeats_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = Lines()
    with lines.counted():
        quantity(1024, "B")
        assert sys.gettrace() is not None
    assert lines.count > 0

    monkeypatch.setattr("tests.fuzz.worker.PATIENCE", 10)
    with lines.counted():
        for _ in range(20):
            quantity(1024, "B")
        assert sys.gettrace() is None


# ---- damage, and making it small ----


def test_the_same_seed_makes_the_same_inputs() -> None:
    seeds = [json.dumps({"a": [1, 2, {"b": "c"}], "d": None}).encode(), b'{"a": 1}']

    made = [[mutate_json(chance, seeds) for _ in range(50)] for chance in (Random(7), Random(7))]

    assert made[0] == made[1]
    assert len(set(made[0])) > 25


def test_damage_leaves_the_document_as_it_was() -> None:
    document = {"a": [1, 2, 3]}

    for number in range(50):
        damage_document(Random(number), document, {"x": 1})

    assert document == {"a": [1, 2, 3]}


def test_empty_files_can_be_damaged_too() -> None:
    assert all(isinstance(mutate_bytes(Random(number), b""), bytes) for number in range(50))


def test_a_failing_document_is_reduced_to_what_fails() -> None:
    content = json.dumps({"a": [1, {"wrong": 3, "right": 4}], "b": {"c": list(range(20))}}).encode()

    assert reduced(content, lambda candidate: b"wrong" in candidate, 60.0) == b'{"a": [{"wrong": 3}]}'


def test_a_failing_text_is_reduced_to_what_fails() -> None:
    assert reduced(b"0F0,0B0\n1F0,1X0\n" * 9, lambda candidate: b"X" in candidate, 60.0) == b"X"


# ---- the command ----


@pytest.mark.slow
def test_the_command_runs_each_target_and_succeeds(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--inputs", "30", "--seed", "1", "--only", "orders,expert_layers"]) == 0

    said = capsys.readouterr().out
    assert "seed 1, 30 inputs each for orders, expert_layers" in said
    assert re.search(r"^orders +30 ", said, re.M) and re.search(r"^expert_layers +30 ", said, re.M)


@pytest.mark.slow
def test_a_kept_input_is_replayed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "orders" / "sound.json"
    path.parent.mkdir()
    path.write_text('[["0F0", "0B0"]]')

    assert main(["--replay", str(path)]) == 0
    assert "2 calls, 0 failures" in capsys.readouterr().out
