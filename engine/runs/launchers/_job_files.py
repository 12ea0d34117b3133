"""Files in the folder of a job: the request to cancel it, how its processes ended, and its logs."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from meshwave.engine.run_files import Count, RunFile, RunFolderError, files_by_process, read_document
from meshwave.engine.runs.checkpoints import INTERRUPTED
from meshwave.engine.runs.outcome import Exit, Verdict
from meshwave.engine.runs.run import last_lines
from meshwave.engine.runs.run_entry import State


class _ExitFile(RunFile):
    process: Count
    code: int
    ours: bool
    time_s: float


class _Interrupted(RunFile):
    steps: Count


def read_exits(folder: Path, processes: int) -> list[Exit]:
    """Return the exits of processes that a run has reported."""
    found = []
    for path in files_by_process(folder, "exit", ".json").values():
        with suppress(RunFolderError):
            written = read_document(path, _ExitFile)
            if written is not None and written.process < processes:
                found.append(Exit(**written.model_dump()))
    return found


def read_interrupted(folder: Path) -> _Interrupted | None:
    """Return the record that a run wrote when its scheduler interrupted it; None if it was not interrupted."""
    with suppress(RunFolderError):
        return read_document(folder / INTERRUPTED, _Interrupted)
    return None


def last_errors(folder: Path) -> str:
    """Return the first errors at the end of the logs of a job, or the last lines if no line names an error."""
    tails = [line for path in sorted(folder.glob("*.log")) for line in last_lines(path, 100)]
    logs = [line for line in tails if line.strip()]
    errors = [line for line in logs if "Error" in line or "error" in line]
    return " / ".join(line.strip()[:200] for line in errors[:3] or logs[-3:]) or "there are no logs"


def judge_unreported_end(folder: Path, reported: int, processes: int) -> Verdict:
    """Return the verdict on a run whose job has ended although not all processes reported how they ended."""
    params = {"reported": reported, "processes": processes, "said": last_errors(folder)}
    return Verdict(State.LOST, "unreported_end", params)


def cancel_command(folder: str, why: str) -> list[str]:
    """Return the command that writes the request to cancel a run to its folder on a host."""
    return ["sh", "-c", 'printf "%s" "$1" >"$2/cancel"', "cancel", why, folder]
