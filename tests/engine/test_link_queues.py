"""Emulated links: connections take turns, unless there is but one, or very many."""

from __future__ import annotations

import pytest

from engine import network
from engine.errors import RunError
from engine.link_queues import FIRST, MOST_CLASSES, Connection, bucket, burst_bytes, fair_bucket


def connections(sources: int, targets: int) -> list[Connection]:
    return [Connection(f"10.78.0.{s}", f"10.78.1.{t}") for s in range(sources) for t in range(targets)]


def filters(lines: list[str]) -> list[str]:
    return [line for line in lines if line.startswith("filter")]


def test_a_link_of_one_connection_serves_what_comes_first() -> None:
    assert [*fair_bucket("e1", 1e6, connections(1, 1))] == [*bucket("e1", 1e6)]


def test_each_connection_has_a_class_of_its_own_that_may_have_the_whole_link() -> None:
    lines = [*fair_bucket("up0", 5e6, connections(2, 2))]

    assert len(filters(lines)) == 4
    for number in range(FIRST, FIRST + 4):
        (made,) = [line for line in lines if line.startswith("class") and f"classid 1:{number:x} " in line]
        assert "ceil 5000000bps" in made
        assert sum(f"flowid 1:{number:x}" in line for line in lines) == 1
    (whole,) = [line for line in lines if "classid 1:1 " in line]
    assert "rate 5000000bps ceil 5000000bps" in whole


def test_where_there_are_very_many_those_of_a_process_are_one() -> None:
    many = connections(MOST_CLASSES // 4, 8)

    lines = filters([*fair_bucket("up0", 5e6, many)])

    assert len(lines) == MOST_CLASSES // 4
    assert not any("ip dst" in line for line in lines)


def test_a_slow_link_lets_one_packet_pass_at_once_and_a_fast_one_what_the_kernel_hands_out() -> None:
    assert burst_bytes(1e5) == 10_000
    assert burst_bytes(1e9) == 70_000


def test_a_kernel_without_turns_serves_what_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []

    def tc(*lines: str) -> None:
        if any("htb" in line for line in lines):
            raise RunError("tc failed: Specified qdisc kind is unknown.")
        told.extend(lines)

    monkeypatch.setattr(network, "_tc", tc)

    network._shape([("up0", 5e6, tuple(connections(2, 2))), ("e0", 1e6, ())])

    assert told == [*bucket("up0", 5e6), *bucket("e0", 1e6)]
