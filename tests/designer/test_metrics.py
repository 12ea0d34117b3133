"""The metrics of the server for operators."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from meshwave.designer.bench.page_client import PageClient
from meshwave.designer.server.serve import read_design, serve_in_thread
from meshwave.engine.runs import Record, State

TOKEN = "a-token-for-tests"
HELP, TYPE = re.compile(r"# HELP [a-z_]+ \S.*"), re.compile(r"# TYPE [a-z_]+ (gauge|counter)")
SAMPLE = re.compile(r'[a-z_]+(\{[a-z_]+="[^"\\]*"\})? [0-9.e+-]+')


@pytest.fixture
def link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("MESHWAVE_HOME", str(tmp_path))
    with serve_in_thread(read_design(None), TOKEN) as link:
        yield link


def scraped_text(link: str) -> str:
    request = Request(link.partition("?")[0] + "metrics", headers={"Authorization": f"Bearer {TOKEN}"})
    with urlopen(request, timeout=20) as answer:
        assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        return str(answer.read().decode())


def values(link: str) -> dict[str, float]:
    samples = [line.rpartition(" ") for line in scraped_text(link).splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in samples}


def test_every_line_of_the_metrics_is_in_the_text_format(link: str) -> None:
    lines = scraped_text(link)

    assert lines.endswith("\n")
    for line in lines.splitlines():
        assert HELP.fullmatch(line) or TYPE.fullmatch(line) or SAMPLE.fullmatch(line), line


@pytest.mark.slow
def test_sessions_connections_edits_and_runs_are_counted(link: str, tmp_path: Path) -> None:
    async def visit() -> dict[str, float]:
        page = await PageClient.open(link)
        await page.edit(7)
        await page.edit(9)
        found = await asyncio.to_thread(values, link)
        await page.leave()
        return found

    record = Record(tmp_path)
    run, _ = record.submit(name="one", launcher="local", handle={}, digest="", processes=4, steps=1)
    record.change_state(run.id, State.RUNNING)
    record.change_state(run.id, State.SUCCEEDED)
    with ThreadPoolExecutor(1) as elsewhere:  # playwright's loop, if a test before used it, runs in this thread
        found = elsewhere.submit(asyncio.run, visit()).result()

    assert (found["meshwave_sessions"], found["meshwave_connections"]) == (1, 1)
    assert found["meshwave_edits_total"] == 2
    assert found['meshwave_runs{state="succeeded"}'] == 1 and found['meshwave_runs{state="running"}'] == 0
    assert found["meshwave_processes"] == 0
    assert found["process_cpu_seconds_total"] > 0
