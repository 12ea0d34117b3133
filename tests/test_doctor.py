"""``meshwave doctor`` examines any machine, also a broken one, and never fails itself."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from meshwave.engine.cli import doctor
from meshwave.engine.cli.doctor import Finding


def find_by_name(findings: list[Finding], name: str) -> Finding:
    return next(finding for finding in findings if finding.name == name)


@pytest.fixture(scope="module")
def examined(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the report on this machine by a process of its own, and if the process has imported torch."""
    program = """
        import json, pathlib, sys
        import meshwave.engine.cli.doctor as doctor
        found = doctor.to_json(doctor.examine_machine(pathlib.Path(sys.argv[1])))
        print(json.dumps({**found, "imports_torch": "torch" in sys.modules}))
    """
    command = [sys.executable, "-c", textwrap.dedent(program), str(tmp_path_factory.mktemp("home"))]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    report: dict[str, Any] = json.loads(done.stdout)
    return report


@pytest.mark.torch
def test_every_part_of_this_machine_is_checked(examined: dict[str, Any]) -> None:
    assert {finding["name"] for finding in examined["findings"]} >= {
        "python", "numpy", "pydantic", "panel", "torch", "gpus", "gloo", "cores", "memory", "fork", "orphans",
        "loopback", "runs", "chromium",
    }  # fmt: skip
    assert examined["healthy"]
    assert all(finding["remedy"] for finding in examined["findings"] if finding["state"] == "missing")


@pytest.mark.torch
def test_the_doctor_does_not_import_torch(examined: dict[str, Any]) -> None:
    assert not examined["imports_torch"]


def test_a_missing_torch_is_a_finding_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.util, "find_spec", lambda name: None)

    [finding] = doctor._check_torch()

    assert finding.state == "missing"
    assert "pip install torch" in finding.remedy


def test_a_broken_torch_is_reported_with_its_last_line(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = "raise ImportError('libcudart.so.13: cannot open shared object file')"
    monkeypatch.setattr(doctor, "TORCH_REPORT", ("-c", broken))

    [finding] = doctor._check_torch()

    assert finding.state == "missing"
    assert "libcudart.so.13" in finding.description


@pytest.mark.parametrize(
    ("answer", "names", "states"),
    [
        ({"gloo": True, "nccl": False, "gpus": []}, ["gloo"], ["ok"]),
        ({"gloo": True, "nccl": "2.29.7", "gpus": ["H200"]}, ["gloo", "nccl"], ["ok", "ok"]),
        ({"gloo": True, "nccl": False, "gpus": ["H200"]}, ["gloo", "nccl"], ["ok", "limited"]),
        ({"gloo": False, "nccl": False, "gpus": []}, ["gloo"], ["missing"]),
    ],
)
def test_backends_follow_from_the_report_of_torch(answer: dict[str, Any], names: list[str], states: list[str]) -> None:
    findings = list(doctor._backend_findings(answer))

    assert [finding.name for finding in findings] == names
    assert [finding.state for finding in findings] == states


def test_gpus_are_counted_by_name_and_a_torch_without_cuda_is_reported_if_there_is_a_driver(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert doctor._gpu_finding(["H200", "H200", "A100"]).description == "2 x H200, 1 x A100"

    monkeypatch.setattr(doctor.shutil, "which", lambda name: f"/usr/bin/{name}")
    finding = doctor._gpu_finding([])

    assert finding.state == "limited"
    assert "pytorch.org" in finding.remedy


def test_an_unknown_home_folder_is_missing_and_said_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MESHWAVE_HOME", "~nobody-of-this-name/meshwave")

    found = find_by_name(doctor.examine_machine(), "runs")

    assert found.state == "missing"
    assert "the check failed: the home folder in ~nobody-of-this-name/meshwave is unknown" in str(found)


def test_a_folder_that_cannot_be_written_is_missing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    [unwritable] = doctor._check_run_folder(tmp_path / "file")
    [new] = doctor._check_run_folder(tmp_path / "not" / "there" / "yet")

    assert unwritable.state == "missing"
    assert new.state == "ok"
    assert not (tmp_path / "not").exists()


def test_a_stub_that_only_asks_to_be_installed_does_not_count_as_chromium(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub = script(tmp_path / "chromium", "echo 'requires the chromium snap' >&2; exit 1")
    monkeypatch.setattr(doctor, "_chromium_candidates", lambda: iter([str(stub)]))

    [finding] = doctor._check_chromium()

    assert finding.state == "limited"
    assert "apt-get install chromium" in finding.remedy


def test_chrome_bin_is_tried_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = script(tmp_path / "mine", "echo Chromium 1.2.3")
    monkeypatch.setenv("CHROME_BIN", str(mine))

    assert doctor.find_chromium() == str(mine)


@pytest.mark.slow
def test_a_check_that_fails_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Iterator[Finding]:
        raise OSError("no such file")
        yield

    monkeypatch.setattr(doctor, "_check_memory", broken)
    monkeypatch.setattr(doctor, "_check_torch", broken)

    findings = doctor.examine_machine()

    assert "no such file" in find_by_name(findings, "memory").description
    assert find_by_name(findings, "cores").state == "ok"


def test_the_text_has_a_line_per_finding_and_its_remedy_below() -> None:
    findings = [
        Finding("numpy", "ok", "package_version", {"version": "2.4.6"}),
        Finding("torch", "missing", "torch_missing", {}, "torch_remedy"),
    ]

    assert doctor.to_text(findings).splitlines() == [
        "ok      numpy         2.4.6",
        "missing torch         not installed; runs need it",
        "                      pip install torch; planning and predicting work without it",
    ]
    printed = json.loads(json.dumps(doctor.to_json(findings)))
    assert printed["healthy"] is False
    assert printed["findings"][0] == {
        "name": "numpy", "state": "ok", "code": "package_version", "params": {"version": "2.4.6"},
        "found": "2.4.6", "remedy": "",
    }  # fmt: skip


def script(path: Path, body: str) -> Path:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path
