"""What this machine can do for Meshwave, what is missing, and how to get it.

Nothing here raises: a question without an answer is a finding too. Everything slow (torch, the
GPU driver, the browser) is asked in other processes, at once and with a time limit, so that the
whole takes as long as its slowest answer: an import of torch.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib import metadata, util
from pathlib import Path
from typing import Any, Literal, NamedTuple

from meshwave.engine.files import home, import_path
from meshwave.engine.runs.emulation.network import missing

State = Literal["ok", "limited", "missing"]

OLDEST_PYTHON = (3, 11)
PATIENCE_S = 60.0
"""The longest that one answer is waited for: a cold disk and busy cores need half a minute to import torch."""

TORCH_REPORT = ("-m", "meshwave.engine.runtime.device.report")
"""Arguments of a Python that reports on torch: only ``engine/runtime`` imports it."""

CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "microsoft-edge")
CHROMIUM_PLACES = (
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
)
CHROMIUM_DOWNLOADS = (
    "~/.cache/ms-playwright/chromium-*/chrome-linux*/chrome",
    "~/Library/Caches/ms-playwright/chromium-*/chrome-mac*/*.app/Contents/MacOS/*",
)
CHROMIUM_REMEDY = (
    "only the browser tests need it: install it (Debian, Ubuntu: apt-get install chromium; Fedora: dnf install "
    "chromium; macOS: brew install --cask google-chrome; anywhere: playwright install chromium) or put the path of "
    "a Chrome in CHROME_BIN"
)


class Finding(NamedTuple):
    """One thing that was looked at: what there is and, where something lacks, the way to get it."""

    name: str
    state: State
    found: str
    remedy: str = ""

    def __str__(self) -> str:
        remedy = f"\n{'':22}{self.remedy}" if self.remedy else ""
        return f"{self.state:8}{self.name:14}{self.found}{remedy}"


def doctor(runs: Path | None = None) -> list[Finding]:
    """Look at this machine; ``runs`` is where runs are to be written, by default where they are. Never raises."""
    questions: dict[str, Callable[[], Iterable[Finding]]] = {
        "python": _python,
        "libraries": _libraries,
        "torch": _torch,
        "driver": _driver,
        "cores": _cores,
        "memory": _memory,
        "processes": _processes,
        "loopback": _loopback,
        "links": _links,
        "runs": lambda: _runs(runs or home()),
        "chromium": _chromium,
    }
    with ThreadPoolExecutor(len(questions)) as pool:
        return [finding for found in pool.map(_answered, questions, questions.values()) for finding in found]


def to_text(findings: Iterable[Finding]) -> str:
    """One line a finding, and under it the way out where there is something to do."""
    return "\n".join(map(str, findings))


def to_json(findings: Iterable[Finding]) -> dict[str, Any]:
    """The findings for ``--json``: ``healthy`` is true where nothing is missing."""
    rows = [finding._asdict() for finding in findings]
    return {"healthy": all(row["state"] != "missing" for row in rows), "findings": rows}


def _answered(name: str, question: Callable[[], Iterable[Finding]]) -> list[Finding]:
    try:
        return list(question())
    except Exception as error:  # a report of what is wrong must not stop at what is wrong
        return [Finding(name, "limited", f"could not be looked at: {error!r}")]


def _python() -> Iterator[Finding]:
    here = f"{platform.python_implementation()} {platform.python_version()} on {platform.platform(terse=True)}"
    if sys.version_info >= OLDEST_PYTHON:
        yield Finding("python", "ok", here)
    else:
        oldest = ".".join(map(str, OLDEST_PYTHON))
        yield Finding("python", "missing", here, f"Meshwave needs Python {oldest} or newer")


def _libraries() -> Iterator[Finding]:
    for name, needed_for in {"numpy": "everything", "pydantic": "everything", "panel": "the designer"}.items():
        try:
            yield Finding(name, "ok", metadata.version(name))
        except metadata.PackageNotFoundError:
            yield Finding(name, "missing", f"not installed; {needed_for} needs it", f"pip install {name}")
    try:
        yield Finding("numba", "ok", metadata.version("numba"))
    except metadata.PackageNotFoundError:
        slower = "not installed; large designs whose messages share links are simulated ten times as slowly"
        yield Finding("numba", "limited", slower, "pip install numba")


def _torch() -> Iterator[Finding]:
    if util.find_spec("torch") is None:
        remedy = "pip install torch; planning and predicting work without it"
        yield Finding("torch", "missing", "not installed; runs need it", remedy)
        return
    version = metadata.version("torch")
    try:
        answer: dict[str, Any] = json.loads(_ask(sys.executable, *TORCH_REPORT))
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        yield Finding("torch", "missing", f"{version}, which does not work: {_reason(error)}", "reinstall torch")
        return
    cuda = answer["cuda"]
    yield Finding("torch", "ok", f"{version}, {f'built for CUDA {cuda}' if cuda else 'without CUDA'}")
    yield _gpus(answer["gpus"])
    yield from _backends(answer)


def _gpus(names: list[str]) -> Finding:
    if not names and shutil.which("nvidia-smi"):
        remedy = "install a build of torch for the CUDA of your driver: https://pytorch.org/get-started/locally"
        return Finding("gpus", "limited", "a driver is here, but this torch cannot use it; runs take the CPU", remedy)
    if not names:
        return Finding("gpus", "ok", "none that torch can use; runs take the CPU")
    counted = ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
    return Finding("gpus", "ok", counted)


def _backends(answer: dict[str, Any]) -> Iterator[Finding]:
    if answer["gloo"]:
        yield Finding("gloo", "ok", "there: processes on CPUs, and several on one GPU, talk over it")
    else:
        remedy = "install an official build of torch"
        yield Finding("gloo", "missing", "this torch was built without it; runs on CPUs need it", remedy)
    nccl = answer["nccl"]
    if nccl:
        version = nccl if isinstance(nccl, str) else "there, but no GPU to use it on"
        yield Finding("nccl", "ok", version)
    elif answer["gpus"]:
        remedy = "install a CUDA build of torch"
        yield Finding("nccl", "limited", "not in this torch; GPUs talk over gloo, which is slow", remedy)


def _driver() -> Iterator[Finding]:
    """The driver's own list: it tells a CPU build of torch on a machine that has GPUs."""
    if shutil.which("nvidia-smi") is None:
        return
    try:
        rows = _ask("nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader").splitlines()
    except (OSError, subprocess.SubprocessError) as error:
        yield Finding("driver", "limited", f"nvidia-smi is there and fails: {_reason(error)}")
        return
    yield from (Finding("driver", "ok", f"GPU {index}: {row}") for index, row in enumerate(rows))


def _cores() -> Iterator[Finding]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    yield Finding("cores", "ok", f"{cores}; more processes than that take turns, which a measured timeline shows")


def _memory() -> Iterator[Finding]:
    sizes = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    with suppress(OSError, ValueError):  # a container's limit; "max" is none
        sizes.append(int(Path("/sys/fs/cgroup/memory.max").read_text()))
    yield Finding("memory", "ok", f"{min(sizes) / 1e9:.1f} GB")


def _processes() -> Iterator[Finding]:
    """How processes are started (a warm one forks them) and how they are kept from outliving us."""
    if hasattr(os, "fork") and sys.platform != "darwin":
        yield Finding("fork", "ok", "runs start from a warm process, in a fraction of a second")
    else:
        yield Finding("fork", "limited", "not safe here; each process imports torch for itself, which takes seconds")
    if _parent_death_signal():
        yield Finding("orphans", "ok", "the kernel ends a run's processes when what started them dies")
    else:
        found = "no parent-death signal here; a run ends when the pipe from what started it closes"
        yield Finding("orphans", "limited", found)


def _parent_death_signal() -> bool:
    pr_get_pdeathsig, signal_number = 2, ctypes.c_int()
    if not sys.platform.startswith("linux"):
        return False
    return bool(ctypes.CDLL(None).prctl(pr_get_pdeathsig, ctypes.byref(signal_number), 0, 0, 0) == 0)


def _loopback() -> Iterator[Finding]:
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            socket.create_connection(("127.0.0.1", port), timeout=2).close()
    except OSError as error:
        remedy = "allow connections of this machine to itself: the page and gloo need them"
        yield Finding("loopback", "missing", f"127.0.0.1 does not answer: {error}", remedy)
    else:
        yield Finding("loopback", "ok", "127.0.0.1 answers, on a port the system chose")


def _links() -> Iterator[Finding]:
    """Whether a small cluster with slow links can be emulated here; tried, and gone again at once."""
    if reason := missing():
        found = (
            "cannot be shaped here: run has no --hosts, calibrate measures the loopback, bench leaves its part moe out"
        )
        yield Finding("links", "limited", found, reason)
    else:
        yield Finding("links", "ok", "can be shaped: run --hosts, calibrate --shaped and bench moe emulate nodes here")


def _runs(folder: Path) -> Iterator[Finding]:
    """Tried in the folder or, where there is none yet, in the nearest one above it."""
    folder = folder.expanduser().absolute()
    existing = next(place for place in (folder, *folder.parents) if place.exists())
    try:
        with tempfile.TemporaryFile(dir=existing):
            free = shutil.disk_usage(existing).free
    except OSError as error:
        yield Finding("runs", "missing", f"{folder} cannot be written: {error}", "start Meshwave where you may write")
        return
    state: State = "ok" if free > 1e9 else "limited"
    yield Finding("runs", state, f"{folder}, {free / 1e9:.1f} GB free", "" if state == "ok" else "make room")


def _chromium() -> Iterator[Finding]:
    found = find_chromium()
    if found is None:
        yield Finding("chromium", "limited", "not found", CHROMIUM_REMEDY)
    else:
        yield Finding("chromium", "ok", f"{_chromium_version(found)}, {found}")


def find_chromium() -> str | None:
    """The path of a Chromium or Chrome that starts: CHROME_BIN, the path, then where installers put it."""
    return next((path for path in _chromium_candidates() if _chromium_version(path)), None)


def _chromium_candidates() -> Iterator[str]:
    asked = os.environ.get("CHROME_BIN")
    if asked:
        yield asked
    yield from filter(None, map(shutil.which, CHROMIUM_NAMES))
    yield from filter(os.path.exists, CHROMIUM_PLACES)
    for pattern in CHROMIUM_DOWNLOADS:
        yield from sorted(map(str, Path.home().glob(pattern.removeprefix("~/"))), reverse=True)


def _chromium_version(path: str) -> str:
    """What it says of itself; empty for a stub that asks to be installed some other way."""
    try:
        return _ask(path, "--version").strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def _ask(*command: str) -> str:
    """The standard output of a command that may fail, hang or not be there."""
    return subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": import_path()},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_S,
    ).stdout


def _reason(error: Exception) -> str:
    """The last line that a failed command wrote; the error itself where it wrote none."""
    written = str(getattr(error, "stderr", None) or "").strip().splitlines()
    return written[-1] if written else str(error)
