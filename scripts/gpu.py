"""Check and measure everything that needs a GPU: ``python3 scripts/gpu.py FOLDER``.

``FOLDER/gpu.json`` is rewritten after each part, so an interruption keeps the results so far. A part that fails or
exceeds its time limit is recorded with its output, and the other parts continue. ``FOLDER/gpu.log`` contains the output
of all parts. All parts take less than ten minutes; ``--only`` selects parts by words of their names, ``--cpu`` runs
small versions of all parts on a machine without a GPU, to test that they can run.

It runs from a checkout. In addition to torch it needs numpy and pydantic, and pytest and hypothesis for the tests.
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
"""Default time limit of all parts together, in seconds."""
LEAST_S = 5.0
"""Minimum remaining time, in seconds, for which a part is started."""
OUTPUT_CHARACTERS = 6000
"""Maximum number of characters at the end of the output of a part that are recorded."""
NEEDS = ("torch", "numpy", "pydantic", "pytest", "hypothesis")
PACKAGES = (*NEEDS, "pydantic_core", "triton", "nvidia-nccl-cu13", "nvidia-nccl-cu12")
"""Packages whose versions are recorded."""
TESTS = ("test_gpu.py", "test_stages.py", "benchmarks/test_gpu.py", "device/test_accelerator.py")
BENCH = "meshwave.engine.runtime.benchmarks.gpu"
LARGE = "1.3 B parameters"
FIRST = ("the device and its clock", LARGE, f"{LARGE}, compiled")
"""Parts of the benchmark that are measured before other long parts."""
SHARED = ("the device shared by 2 processes", "the device shared by 8 processes")


class Part(NamedTuple):
    """Command with its time limit."""

    name: str
    command: Sequence[str]
    limit_s: float
    done: Sequence[int] = (0,)  # exit statuses of success


class Checks:
    """Results so far, and the remaining time."""

    def __init__(self, folder: Path, log: TextIO, home: str, whole_s: float) -> None:
        """Prepare the checks; ``home`` is a temporary folder for designs, profiles and runs."""
        self._path, self._log = folder / "gpu.json", log
        self._end = time.monotonic() + whole_s
        self._environment = {**os.environ, "PYTHONPATH": _import_path(), "MESHWAVE_HOME": home, "PYTHONUNBUFFERED": "1"}
        self.results: dict[str, Any] = {"machine": describe_machine(), "parts": {}}

    def run_part(self, part: Part) -> Any:
        """Run a part and record its result; return its figures, or None if it failed."""
        left = self._end - time.monotonic()
        began = time.monotonic()
        if left < LEAST_S:
            result: dict[str, Any] = {"state": "skipped: no time left"}
        else:
            self._print_line(f"== {part.name}")
            result = self._run_command(part, min(part.limit_s, left))
            result["seconds"] = round(time.monotonic() - began, 1)
        self.results["parts"][part.name] = result
        self._print_line(f"{part.name}: {result['state']}, {result.get('seconds', 0)} s")
        self.write()
        return result.get("found") if result["state"] == "ok" else None

    def write(self) -> None:
        """Write the results atomically."""
        draft = self._path.with_suffix(".tmp")
        draft.write_text(json.dumps(self.results, indent=1) + "\n", "utf-8")
        draft.rename(self._path)

    def _run_command(self, part: Part, limit_s: float) -> dict[str, Any]:
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            try:
                status = self._status(part.command, limit_s, out, err)
            except OSError as error:
                return {"state": f"failed: {error}"}
            texts = [_read_all(each) for each in (out, err)]
        self._log.write("".join(f"{text}\n" for text in texts if text))
        output = "\n".join(filter(None, texts))[-OUTPUT_CHARACTERS:]
        if status is None:
            return {"state": f"failed: not finished after {limit_s:.0f} s", "said": output}
        found = _json(texts[0])
        failed = found.get("failed") if isinstance(found, dict) else None
        if status not in part.done or failed:
            return {"state": f"failed: {failed or f'status {status}'}", "said": output}
        return {"state": "ok", "found": output if found is None else found}

    def _status(self, command: Sequence[str], limit_s: float, out: TextIO, err: TextIO) -> int | None:
        """Return the exit status of a command; None if it exceeded its time limit and was killed with its children."""
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
            with suppress(ProcessLookupError):  # the command leads its own process group
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _print_line(self, line: str) -> None:
        self._log.write(f"{line}\n")
        self._log.flush()
        print(line, file=sys.stderr, flush=True)


def describe_machine() -> dict[str, Any]:
    """Return versions and properties of this machine, without importing torch."""
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
    for name in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            yield name, metadata.version(name)


def _import_path() -> str:
    return os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])


def _read_all(file: TextIO) -> str:
    file.seek(0)
    return file.read().strip()


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


# ---- the parts ----


def run_all(checks: Checks, cpu: bool, only: Sequence[str], folder: Path) -> None:
    """Run all parts, starting with those that describe the machine.

    ``folder`` is for the designs of the benchmark.
    """

    def run(part: Part) -> Any:
        is_selected = not only or any(word in part.name for word in only)
        return checks.run_part(part) if is_selected else None

    small = ["--cpu"] if cpu else []
    for part in machine_parts(cpu):
        run(part)
    designs = checks.run_part(Part("designs", _engine(BENCH, "--designs", str(folder), *small), 60)) or {}
    pieces = [FIRST[0], *designs, *SHARED]
    found = {name: run(_bench_part(name, small)) for name in FIRST if name in pieces}
    for part in engine_parts(cpu):
        run(part)
    for name in pieces:
        if name not in found:
            found[name] = run(_bench_part(name, small))
        if found[name] and name in designs:
            run(
                Part(
                    f"prediction of {name}",
                    _engine("meshwave.engine.cli.main", "simulate", designs[name], "--json"),
                    60,
                )
            )
    checks.results["summary"] = summarize(found, checks.results["parts"])
    checks.write()


def machine_parts(cpu: bool) -> Iterator[Part]:
    """Yield the parts that describe the machine."""
    if not cpu:
        columns = "name,memory.total,driver_version,clocks.max.sm,clocks.sm,temperature.gpu,power.limit"
        yield Part("driver", ["nvidia-smi", f"--query-gpu={columns}", "--format=csv"], 30)
    yield Part(
        "doctor", _engine("meshwave.engine.cli.main", "doctor", "--json"), 90, done=(0, 1)
    )  # 1: a requirement is missing


def engine_parts(cpu: bool) -> Iterator[Part]:
    """Yield the tests, some runs, and a profile of the device."""
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


def _bench_part(name: str, small: Sequence[str]) -> Part:
    return Part(name, _engine(BENCH, name, *small), 180)


def _engine(module: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", module, *arguments]


# ---- summary ----


def summarize(found: Mapping[str, Any], parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the throughput of each training, and the errors of its predicted step time and memory."""
    try:
        from meshwave.engine.runtime.benchmarks.gpu import utilization
    except ImportError:
        return {}
    device = found.get(FIRST[0]) or {"failed": "not measured"}
    summary = {}
    for name, figures in found.items():
        if figures and "step_s" in figures:
            predicted = (parts.get(f"prediction of {name}") or {}).get("found")
            summary[name] = {
                "tokens_per_s": figures["tokens_per_s"],
                "step_s": figures["step_s"],
                **utilization(figures, device),
                **_errors(figures, predicted if isinstance(predicted, dict) else {}),
            }
    return summary


def _errors(figures: Mapping[str, Any], predicted: Mapping[str, Any]) -> dict[str, float]:
    errors = {}
    if "makespan_s" in predicted:
        errors["measured_by_predicted_step"] = figures["step_s"] / predicted["makespan_s"]
    if figures.get("peak_memory_bytes"):
        errors["measured_by_predicted_memory"] = figures["peak_memory_bytes"] / figures["formulas_memory_bytes"]
    return errors


def to_text(results: Mapping[str, Any]) -> str:
    """Return a line for each part, then one for each training."""
    lines = [f"{name:<52} {result['state'][:90]}" for name, result in results["parts"].items()]
    for name, figures in results.get("summary", {}).items():
        lines.append(f"{name:<52} " + ", ".join(f"{key} {value:.4g}" for key, value in figures.items()))
    return "\n".join(lines)


def main() -> int:
    """Run the parts and print a summary; return 1 if any failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "folder", type=Path, metavar="FOLDER", help="folder of gpu.json and gpu.log; created if it does not exist"
    )
    parser.add_argument(
        "--seconds", type=float, default=WHOLE_S, help=f"time limit of all parts (default: {WHOLE_S:.0f})"
    )
    parser.add_argument("--only", metavar="WORD,...", help="parts whose name has one of these words")
    parser.add_argument("--cpu", action="store_true", help="run small versions on a machine without a GPU")
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    options.folder.mkdir(parents=True, exist_ok=True)
    only = [word for word in (options.only or "").split(",") if word]
    with tempfile.TemporaryDirectory() as home, (options.folder / "gpu.log").open("w", encoding="utf-8") as log:
        checks = Checks(options.folder, log, home, options.seconds)
        for name in checks.results["machine"]["lacking"]:
            print(f"{name} is not installed: parts that need it will fail", file=sys.stderr)
        run_all(checks, options.cpu, only, Path(home))
    print(to_text(checks.results))
    return int(any(result["state"] != "ok" for result in checks.results["parts"].values()))


if __name__ == "__main__":
    sys.exit(main())
