"""Everything that wants a GPU, checked and measured by one command: ``python3 scripts/gpu.py FOLDER``.

``FOLDER/gpu.json`` is written anew after each part, so that whatever ends this early leaves what there was; a part that
fails, or takes too long, is written down with what it said, and the others go on. ``FOLDER/gpu.log`` is all that was
said. The whole takes less than ten minutes; ``--only`` takes parts by words of their names, ``--cpu`` plays all of them
small on a machine without a GPU, which shows that they can run.

It runs from a checkout: beside torch it needs numpy and pydantic, and for the tests pytest and hypothesis.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple, TextIO

ROOT = Path(__file__).resolve().parent.parent
WHOLE_S = 560.0
"""All parts together, unless told otherwise: a lent machine gives a command ten minutes."""
LEAST_S = 5.0
"""A part for which less is left is not begun."""
SAID = 6000
"""Characters that are kept of the end of what a part says."""
NEEDS = ("torch", "numpy", "pydantic", "pytest", "hypothesis")
TOLD = (*NEEDS, "pydantic_core", "triton", "nvidia-nccl-cu13", "nvidia-nccl-cu12")
"""Packages whose versions are written down."""
TESTS = ("test_gpu.py", "test_stages.py", "benchmarks/test_gpu.py", "device/test_accelerator.py")
BENCH = "meshwave.engine.runtime.benchmarks.gpu"
LARGE = "1.3 B parameters"
FIRST = ("the device and its clock", LARGE, f"{LARGE}, compiled")
"""Pieces of the bench that are measured before all else that takes long."""
SHARED = ("the device shared by 2 processes", "the device shared by 8 processes")


class Part(NamedTuple):
    """A command, and the longest that it may take."""

    name: str
    command: Sequence[str]
    limit_s: float
    done: Sequence[int] = (0,)  # the exit statuses that are no failure


class Checks:
    """The results so far, and the time that is left."""

    def __init__(self, folder: Path, log: TextIO, home: str, whole_s: float) -> None:
        """``home`` is where designs, profiles and runs are kept meanwhile."""
        self._path, self._log = folder / "gpu.json", log
        self._end = time.monotonic() + whole_s
        self._environment = {**os.environ, "PYTHONPATH": _path(), "MESHWAVE_HOME": home, "PYTHONUNBUFFERED": "1"}
        self.results: dict[str, Any] = {"machine": about(), "parts": {}}

    def play(self, part: Part) -> Any:
        """Run a part and write down what came of it; what it found, none where it failed."""
        left = self._end - time.monotonic()
        began = time.monotonic()
        if left < LEAST_S:
            result: dict[str, Any] = {"state": "left out: no time was left"}
        else:
            self._tell(f"== {part.name}")
            result = self._ran(part, min(part.limit_s, left))
            result["seconds"] = round(time.monotonic() - began, 1)
        self.results["parts"][part.name] = result
        self._tell(f"{part.name}: {result['state']}, {result.get('seconds', 0)} s")
        self.write()
        return result.get("found") if result["state"] == "ok" else None

    def write(self) -> None:
        """All of it, or nothing: who is ended meanwhile leaves the file of before."""
        draft = self._path.with_suffix(".tmp")
        draft.write_text(json.dumps(self.results, indent=1) + "\n", "utf-8")
        draft.rename(self._path)

    def _ran(self, part: Part, limit_s: float) -> dict[str, Any]:
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            try:
                status = self._status(part.command, limit_s, out, err)
            except OSError as error:
                return {"state": f"failed: {error}"}
            texts = [_read(each) for each in (out, err)]
        self._log.write("".join(f"{text}\n" for text in texts if text))
        said = "\n".join(filter(None, texts))[-SAID:]
        if status is None:
            return {"state": f"failed: not done after {limit_s:.0f} s", "said": said}
        found = _json(texts[0])
        failed = found.get("failed") if isinstance(found, dict) else None
        if status not in part.done or failed:
            return {"state": f"failed: {failed or f'status {status}'}", "said": said}
        return {"state": "ok", "found": said if found is None else found}

    def _status(self, command: Sequence[str], limit_s: float, out: TextIO, err: TextIO) -> int | None:
        """Its exit status; none where it had to be ended, with all that it started."""
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
        try:
            return process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            with suppress(ProcessLookupError):  # it leads a group of its own
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _tell(self, line: str) -> None:
        self._log.write(f"{line}\n")
        self._log.flush()
        print(line, file=sys.stderr, flush=True)


def about() -> dict[str, Any]:
    """What this runs on, asked without torch."""
    lacking = [name for name in NEEDS if importlib.util.find_spec(name) is None]
    return {
        "python": platform.python_version(),
        "system": platform.platform(),
        "cores": os.cpu_count(),
        "versions": dict(_versions()),
        "lacking": lacking,
        "began": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _versions() -> Iterator[tuple[str, str]]:
    for name in TOLD:
        with suppress(metadata.PackageNotFoundError):
            yield name, metadata.version(name)


def _path() -> str:
    return os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])


def _read(file: TextIO) -> str:
    file.seek(0)
    return file.read().strip()


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


# ---- the parts ----


def play_all(checks: Checks, cpu: bool, only: Sequence[str], folder: Path) -> None:
    """Part after part, those first that all others are read by. ``folder`` is for the designs of the bench."""

    def play(part: Part) -> Any:
        wanted = not only or any(word in part.name for word in only)
        return checks.play(part) if wanted else None

    small = ["--cpu"] if cpu else []
    for part in first(cpu):
        play(part)
    designs = checks.play(Part("designs", _engine(BENCH, "--designs", str(folder), *small), 60)) or {}
    pieces = [FIRST[0], *designs, *SHARED]
    found = {name: play(_piece(name, small)) for name in FIRST if name in pieces}
    for part in middle(cpu):
        play(part)
    for name in pieces:
        if name not in found:
            found[name] = play(_piece(name, small))
        if found[name] and name in designs:
            play(
                Part(
                    f"prediction of {name}",
                    _engine("meshwave.engine.cli.main", "simulate", designs[name], "--json"),
                    60,
                )
            )
    checks.results["summary"] = summary(found, checks.results["parts"])
    checks.write()


def first(cpu: bool) -> Iterator[Part]:
    if not cpu:
        asked = "name,memory.total,driver_version,clocks.max.sm,clocks.sm,temperature.gpu,power.limit"
        yield Part("driver", ["nvidia-smi", f"--query-gpu={asked}", "--format=csv"], 30)
    yield Part(
        "doctor", _engine("meshwave.engine.cli.main", "doctor", "--json"), 90, done=(0, 1)
    )  # 1: it found something missing


def middle(cpu: bool) -> Iterator[Part]:
    """Tests, runs by the command line, and a profile of the device."""
    folder = ROOT / "tests" / "engine" / "runtime"
    tests = [str(folder / name) for name in TESTS]
    yield Part(
        "tests",
        _engine("pytest", "-m", "gpu or accelerator", "-q", "-rA", "--tb=short", "-p", "no:cacheprovider", *tests),
        240,
    )
    for name, *how in (("03-gpt-on-two-cores",), ("20-unequal-meshes",), ("02-two-waves", "--rehearse")):
        yield Part(
            " ".join(["run", name, *how]),
            _engine("meshwave.engine.cli.main", "run", name, "--steps", "4", *how, "--json"),
            90,
        )
    seconds = "1" if cpu else "30"
    yield Part(
        "profile",
        _engine("meshwave.engine.cli.main", "calibrate", "--parts", "blocks", "--seconds", seconds, "--json"),
        200,
    )


def _piece(name: str, small: Sequence[str]) -> Part:
    return Part(name, _engine(BENCH, name, *small), 180)


def _engine(module: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", module, *arguments]


# ---- in short ----


def summary(found: Mapping[str, Any], parts: Mapping[str, Any]) -> dict[str, Any]:
    """Of each training what it reached, and how near the predictions of time and memory came."""
    try:
        from meshwave.engine.runtime.benchmarks.gpu import utilisation
    except ImportError:
        return {}
    device = found.get(FIRST[0]) or {"failed": "not measured"}
    told = {}
    for name, figures in found.items():
        if figures and "step_s" in figures:
            predicted = (parts.get(f"prediction of {name}") or {}).get("found")
            told[name] = {
                "tokens_per_s": figures["tokens_per_s"],
                "step_s": figures["step_s"],
                **utilisation(figures, device),
                **_against(figures, predicted if isinstance(predicted, dict) else {}),
            }
    return told


def _against(figures: Mapping[str, Any], predicted: Mapping[str, Any]) -> dict[str, float]:
    near = {}
    if "makespan_s" in predicted:
        near["measured_by_predicted_step"] = figures["step_s"] / predicted["makespan_s"]
    if figures.get("peak_memory_bytes"):
        near["measured_by_predicted_memory"] = figures["peak_memory_bytes"] / figures["formulas_memory_bytes"]
    return near


def to_text(results: Mapping[str, Any]) -> str:
    """A line a part, then one a training."""
    lines = [f"{name:<52} {result['state'][:90]}" for name, result in results["parts"].items()]
    for name, figures in results.get("summary", {}).items():
        lines.append(f"{name:<52} " + ", ".join(f"{key} {value:.4g}" for key, value in figures.items()))
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="for gpu.json and gpu.log; made where it is not")
    parser.add_argument("--seconds", type=float, default=WHOLE_S, help=f"for all of it; default: {WHOLE_S:.0f}")
    parser.add_argument("--only", metavar="WORD,...", help="parts whose name has one of these words")
    parser.add_argument("--cpu", action="store_true", help="small, on a machine without a GPU")
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    options.folder.mkdir(parents=True, exist_ok=True)
    only = [word for word in (options.only or "").split(",") if word]
    with tempfile.TemporaryDirectory() as home, (options.folder / "gpu.log").open("w", encoding="utf-8") as log:
        checks = Checks(options.folder, log, home, options.seconds)
        for name in checks.results["machine"]["lacking"]:
            print(f"there is no {name} here: what needs it will fail", file=sys.stderr)
        play_all(checks, options.cpu, only, Path(home))
    print(to_text(checks.results))
    return int(any(result["state"] != "ok" for result in checks.results["parts"].values()))


if __name__ == "__main__":
    sys.exit(main())
