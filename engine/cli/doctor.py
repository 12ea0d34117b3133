"""``meshwave doctor``: check the requirements on this machine, and print how to install missing ones.

Failed checks are findings too, so nothing here raises. Slow checks (torch, the GPU driver, the browser) run in other
processes, in parallel and with a time limit; all checks together take as long as an import of torch.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from glob import glob
from importlib import metadata, util
from pathlib import Path
from typing import Any, Literal, NamedTuple

from meshwave.engine.cli.output import print_json
from meshwave.engine.errors import InputError
from meshwave.engine.files import data_folder, expand_user, import_path
from meshwave.engine.machine import usable_cores
from meshwave.engine.messages import render
from meshwave.engine.runs.emulation.network import missing_requirement

State = Literal["ok", "limited", "missing"]

OLDEST_PYTHON = (3, 11)
CHECK_TIMEOUT_S = 60.0
"""Time limit of a check in seconds; importing torch takes half a minute with a cold disk and busy cores."""

TORCH_REPORT = ("-m", "meshwave.engine.runtime.device.report")
"""Arguments for a Python process that reports on torch, which only ``engine/runtime`` imports."""

CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "microsoft-edge")
CHROMIUM_PLACES = (
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
)
CHROMIUM_DOWNLOADS = (
    "~/.cache/ms-playwright/chromium-*/chrome-linux*/chrome",
    "~/Library/Caches/ms-playwright/chromium-*/chrome-mac*/*.app/Contents/MacOS/*",
)
CHROMIUM_REMEDY = render("chromium_remedy", {})
ENOUGH_DISK_BYTES = 1e9


class Finding(NamedTuple):
    """Result of a check: message code, message parameters, and the code of a remedy if there is one."""

    name: str
    state: State
    code: str
    params: Mapping[str, Any] = {}
    remedy_code: str = ""

    @property
    def description(self) -> str:
        """Text of the finding."""
        return render(self.code, self.params)

    @property
    def remedy(self) -> str:
        """Text of the remedy; empty if there is nothing to do."""
        return render(self.remedy_code, self.params) if self.remedy_code else ""

    def __str__(self) -> str:
        remedy = f"\n{'':22}{self.remedy}" if self.remedy else ""
        return f"{self.state:8}{self.name:14}{self.description}{remedy}"

    def to_json(self) -> dict[str, Any]:
        """Return the finding as a JSON object for ``--json``."""
        return {
            "name": self.name,
            "state": self.state,
            "code": self.code,
            "params": dict(self.params),
            "found": self.description,
            "remedy": self.remedy,
        }


def doctor(options: argparse.Namespace) -> int:
    """Print the findings about this machine and return the exit status."""
    findings = examine_machine()
    if options.json:
        print_json(to_json(findings))
    else:
        print(to_text(findings))
    return 0


def examine_machine(folder: Path | None = None) -> list[Finding]:
    """Run all checks; never raises.

    ``folder`` is the folder of runs, by default the user's.
    """
    checks: dict[str, Callable[[], Iterable[Finding]]] = {
        "python": _check_python,
        "libraries": _check_libraries,
        "torch": _check_torch,
        "driver": _check_driver,
        "cores": _check_cores,
        "memory": _check_memory,
        "processes": _check_processes,
        "loopback": _check_loopback,
        "links": _check_links,
        "runs": lambda: _check_run_folder(folder),
        "chromium": _check_chromium,
    }
    with ThreadPoolExecutor(len(checks)) as pool:
        return [finding for found in pool.map(_run_check, checks, checks.values()) for finding in found]


def to_text(findings: Iterable[Finding]) -> str:
    """Format findings as lines of text, with the remedies below."""
    return "\n".join(map(str, findings))


def to_json(findings: Iterable[Finding]) -> dict[str, Any]:
    """Return the findings as a JSON object for ``--json``; ``healthy`` is True if no requirement is missing."""
    rows = [finding.to_json() for finding in findings]
    return {"healthy": all(row["state"] != "missing" for row in rows), "findings": rows}


def _run_check(name: str, check: Callable[[], Iterable[Finding]]) -> list[Finding]:
    try:
        return list(check())
    except Exception as error:  # a failed check must not stop the report
        return [Finding(name, "limited", "check_failed", {"error": repr(error)})]


def _check_python() -> Iterator[Finding]:
    params = {
        "implementation": platform.python_implementation(),
        "version": platform.python_version(),
        "platform": platform.platform(terse=True),
        "oldest": ".".join(map(str, OLDEST_PYTHON)),
    }
    if sys.version_info >= OLDEST_PYTHON:
        yield Finding("python", "ok", "python_version", params)
    else:
        yield Finding("python", "missing", "python_version", params, "newer_python_remedy")


def _check_libraries() -> Iterator[Finding]:
    for name, needed_by in {"numpy": "everything", "pydantic": "everything", "panel": "the designer"}.items():
        try:
            yield Finding(name, "ok", "package_version", {"version": metadata.version(name)})
        except metadata.PackageNotFoundError:
            params = {"package": name, "needed_by": needed_by}
            yield Finding(name, "missing", "package_missing", params, "package_remedy")
    try:
        yield Finding("numba", "ok", "package_version", {"version": metadata.version("numba")})
    except metadata.PackageNotFoundError:
        yield Finding("numba", "limited", "numba_missing", {"package": "numba"}, "package_remedy")


def _check_torch() -> Iterator[Finding]:
    if util.find_spec("torch") is None:
        yield Finding("torch", "missing", "torch_missing", {}, "torch_remedy")
        return
    version = metadata.version("torch")
    try:
        report: dict[str, Any] = json.loads(_output_of(sys.executable, *TORCH_REPORT))
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        params = {"version": version, "reason": _last_line(error)}
        yield Finding("torch", "missing", "torch_broken", params, "torch_reinstall_remedy")
        return
    yield Finding("torch", "ok", "torch_version", {"version": version, "cuda": report["cuda"]})
    yield _gpu_finding(report["gpus"])
    yield from _backend_findings(report)


def _gpu_finding(names: list[str]) -> Finding:
    if not names and shutil.which("nvidia-smi"):
        return Finding("gpus", "limited", "gpus_without_torch_build", {}, "torch_build_remedy")
    if not names:
        return Finding("gpus", "ok", "no_gpus")
    return Finding("gpus", "ok", "gpus", {"names": names})


def _backend_findings(report: dict[str, Any]) -> Iterator[Finding]:
    if report["gloo"]:
        yield Finding("gloo", "ok", "gloo_available")
    else:
        yield Finding("gloo", "missing", "gloo_missing", {}, "gloo_remedy")
    nccl = report["nccl"]
    if isinstance(nccl, str):
        yield Finding("nccl", "ok", "nccl_version", {"version": nccl})
    elif nccl:
        yield Finding("nccl", "ok", "nccl_without_gpu")
    elif report["gpus"]:
        yield Finding("nccl", "limited", "nccl_missing", {}, "nccl_remedy")


def _check_driver() -> Iterator[Finding]:
    """Yield the GPUs that the driver reports; they reveal a CPU build of torch on a machine with GPUs."""
    if shutil.which("nvidia-smi") is None:
        return
    query = "--query-gpu=name,memory.total,driver_version"
    try:
        rows = _output_of("nvidia-smi", query, "--format=csv,noheader").splitlines()
    except (OSError, subprocess.SubprocessError) as error:
        yield Finding("driver", "limited", "driver_broken", {"reason": _last_line(error)})
        return
    for index, row in enumerate(rows):
        yield Finding("driver", "ok", "driver_gpu", {"index": index, "description": row})


def _check_cores() -> Iterator[Finding]:
    cores = usable_cores()
    yield Finding("cores", "ok", "cores", {"cores": cores})


def _check_memory() -> Iterator[Finding]:
    sizes = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    with suppress(OSError, ValueError):  # limit of a container; "max" means no limit
        sizes.append(int(Path("/sys/fs/cgroup/memory.max").read_text()))
    yield Finding("memory", "ok", "memory_size", {"bytes": min(sizes)})


def _check_processes() -> Iterator[Finding]:
    """Yield the start method of processes (forked from a warm process or not), and how they end with their launcher."""
    if hasattr(os, "fork") and sys.platform != "darwin":
        yield Finding("fork", "ok", "fork_available")
    else:
        yield Finding("fork", "limited", "fork_unsafe")
    if _parent_death_signal():
        yield Finding("orphans", "ok", "orphans_killed")
    else:
        yield Finding("orphans", "limited", "orphans_by_pipe")


def _parent_death_signal() -> bool:
    pr_get_pdeathsig, signal_number = 2, ctypes.c_int()
    if not sys.platform.startswith("linux"):
        return False
    return bool(ctypes.CDLL(None).prctl(pr_get_pdeathsig, ctypes.byref(signal_number), 0, 0, 0) == 0)


def _check_loopback() -> Iterator[Finding]:
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            socket.create_connection(("127.0.0.1", port), timeout=2).close()
    except OSError as error:
        yield Finding("loopback", "missing", "loopback_broken", {"error": str(error)}, "loopback_remedy")
    else:
        yield Finding("loopback", "ok", "loopback_works")


def _check_links() -> Iterator[Finding]:
    """Yield the result of emulating a small cluster with slow links, which is removed at once."""
    if reason := missing_requirement():
        yield Finding("links", "limited", "links_not_emulated", {"reason": reason}, "links_remedy")
    else:
        yield Finding("links", "ok", "links_emulated")


def _check_run_folder(folder: Path | None) -> Iterator[Finding]:
    """Yield the result of writing to the folder, by default the user's, or to its nearest existing parent."""
    try:
        folder = expand_user(folder or data_folder()).absolute()
    except InputError as error:
        yield Finding("runs", "missing", "check_failed", {"error": str(error)})
        return
    existing = next(place for place in (folder, *folder.parents) if place.exists())
    try:
        with tempfile.TemporaryFile(dir=existing):
            free = shutil.disk_usage(existing).free
    except OSError as error:
        params = {"folder": str(folder), "error": str(error)}
        yield Finding("runs", "missing", "folder_unwritable", params, "folder_remedy")
        return
    space = {"folder": str(folder), "free_bytes": free}
    if free > ENOUGH_DISK_BYTES:
        yield Finding("runs", "ok", "folder_writable", space)
    else:
        yield Finding("runs", "limited", "folder_writable", space, "disk_full_remedy")


def _check_chromium() -> Iterator[Finding]:
    path = find_chromium()
    if path is None:
        yield Finding("chromium", "limited", "chromium_missing", {}, "chromium_remedy")
    else:
        yield Finding("chromium", "ok", "chromium_version", {"version": _chromium_version(path), "path": path})


def find_chromium() -> str | None:
    """Return the path of a working Chromium or Chrome: from CHROME_BIN, PATH, or the folders of installers."""
    return next((path for path in _chromium_candidates() if _chromium_version(path)), None)


def _chromium_candidates() -> Iterator[str]:
    if chosen := os.environ.get("CHROME_BIN"):
        yield chosen
    yield from filter(None, map(shutil.which, CHROMIUM_NAMES))
    yield from filter(os.path.exists, CHROMIUM_PLACES)
    for pattern in CHROMIUM_DOWNLOADS:
        yield from sorted(glob(os.path.expanduser(pattern)), reverse=True)


def _chromium_version(path: str) -> str:
    """Return the version of a browser; empty for a stub that only prints how to install it."""
    try:
        return _output_of(path, "--version").strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def _output_of(*command: str) -> str:
    """Return the standard output of a command; empty if it fails, hangs or does not exist."""
    return subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": import_path()},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
        timeout=CHECK_TIMEOUT_S,
    ).stdout


def _last_line(error: Exception) -> str:
    """Return the last output line of a failed command, or the error if it printed nothing."""
    written = str(getattr(error, "stderr", None) or "").strip().splitlines()
    return written[-1] if written else str(error)
