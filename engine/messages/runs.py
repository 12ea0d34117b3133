"""Messages of launches and runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from meshwave.engine.errors import suggestion_text
from meshwave.engine.messages import Message, fill_template, render
from meshwave.engine.units import format_time, quantity


def _slow_link(rate: str, least: float, scale: str | None) -> str:
    dilation = f", or use a time-dilation factor below {scale}" if scale is not None else ""
    return f"an emulated link of {rate} bytes/s is too slow; use {least:g} bytes/s or more{dilation}"


def _text_missing(name: str, folders: Sequence[str]) -> str:
    return (
        f"the text {name} does not exist (looked in {', '.join(folders)}); put it there, choose it in the Run tab or "
        "with meshwave run --data FILE, or set data to null for the built-in sample text"
    )


def _too_many_processes(processes: int, most: int) -> str:
    return fill_template(
        "the meshes have {processes} {processes:plural|device|devices}, and at most {most} "
        "{most:plural|process|processes} can run here; use fewer devices",
        processes=processes,
        most=most,
    )


def _hang(seconds: float, chain: Sequence[Mapping[str, Any]]) -> str:
    links = "; ".join(render(each["code"], each["params"]) for each in chain)
    return f"no process completed an action for {quantity(seconds, 's')}: {links}"


_SIGNAL_HINTS = {
    "SIGKILL": "the signal did not come from Meshwave; it was sent by a user, or by the kernel because memory ran out",
    "SIGABRT": "gloo aborts when a message is longer than the receive that waits for it: a size mismatch",
    "SIGSEGV": "a library crashed; its log may say where",
    "SIGBUS": "the training text was truncated while it was read, or a disk or shared memory is full",
}


def _process_killed(mesh: str, process: int, signal: str, status: int, log: str = "") -> str:
    sentence = f"mesh {mesh}, process {process} was terminated by {signal} (exit {status})"
    return "; ".join(filter(None, (sentence, _SIGNAL_HINTS.get(signal, ""), _log_line(log))))


def _process_without_error(mesh: str, process: int, status: int, log: str = "", hint: str = "") -> str:
    sentence = f"mesh {mesh}, process {process} exited with status {status} and reported no error"
    return "; ".join(filter(None, (sentence, hint, _log_line(log))))


def _process_without_space(**params: Any) -> str:
    hint = "the process could not write its error to the run folder; check for a full disk or a file size limit"
    return _process_without_error(**params, hint=hint)


def _log_line(log: str) -> str:
    return f"the last line of its log: {log}" if log else ""


def _cancelled_run(done: int, total: int, why: str = "") -> str:
    return f"cancelled after {done} of {total} steps" + (f": {why}" if why else "")


def _cancelled_before_start(why: str = "") -> str:
    return "cancelled before it started" + (f": {why}" if why else "")


def _queued(position: int, queued: int, run: str) -> str:
    place = f"position {position} of {queued} in the queue"
    return f"{place}; run {run} is active" if run else place


def _no_answer(since_s: float, why: str = "") -> str:
    return f"no answer since {format_time(since_s)}" + (f": {why}" if why else "")


def _failed_attempt(number: int, reason: str, done: int, resumed_from: int) -> str:
    start = f"the checkpoint after step {resumed_from}" if resumed_from else "the first step"
    return f"attempt {number} ended after {done} steps: {reason}; the next one started from {start}"


def _unknown_run(run: str, known: Sequence[str], suggestion: str | None) -> str:
    return f"there is no run {run!r}. {suggestion_text(known, suggestion) if known else 'There are no runs yet.'}"


MESSAGES: dict[str, Message] = {
    # results of runs
    "steps_done": "{done} of {total} steps",
    "cancelled_run": _cancelled_run,
    "cancelled_before_start": _cancelled_before_start,
    "meshwave_closed": "Meshwave was closed",
    "run_failed": "the run failed: {reason}",
    "not_launched": "the run could not be launched: {reason}",
    "not_cancelled": "run {run} could not be cancelled: {reason} ({folder})",
    "action_failed": "mesh {mesh}, {error}",
    "process_failed": "mesh {mesh}, process {process}: {error}",
    "process_killed": _process_killed,
    "process_without_error": _process_without_error,
    "process_without_space": _process_without_space,
    "processes_ended": "the processes of the run were terminated before they finished",
    "launcher_unknown": "the run database does not name the process that launched this run",
    "launcher_ended": (
        "process {pid}, which launched the run, ended after {done} of {total} steps; the files that the run wrote are "
        "kept"
    ),
    "end_not_recorded": "the end of the run was not recorded; the files that it wrote are kept",
    "warm_process_gone": "the process that starts runs has ended ({reason}); launch again",
    "warm_process_killed": "the launcher process was terminated by {signal}",
    "warm_process_failed": lambda status, last_line: (
        f"the process that starts runs ended with status {status}: {last_line or 'it printed nothing'}"
    ),
    "warm_process_ended": "{reason}, after {done} of {total} steps; the files that it wrote are kept",
    "stopped_process": ("{name} is stopped and does not respond; continue it (kill -CONT {pid}), or cancel the run"),
    "no_answer": _no_answer,
    "cancel_pending": "{why}; the run is cancelled as soon as there is an answer",
    # the run database
    "queued": _queued,
    "failed_attempt": _failed_attempt,
    "run_record_unavailable": (
        "the run database in {place} cannot be used: {reason}; free some disk space, or set MESHWAVE_HOME to another "
        "folder"
    ),
    "run_record_unwritable": (
        "cannot store runs in {place}: {reason}; set MESHWAVE_HOME to a folder that you can write to"
    ),
    "damaged_run_index": (
        "the run database {path} is damaged: {reason}; move {name}* to another folder, and the database is rebuilt "
        "from the run folders in {folder}"
    ),
    "damaged_run_entry": (
        "the row of run {run} in the run database {path} is damaged: {reason}; the run is not listed. Repair the row, or "
        "move {name}* to another folder to rebuild the database from the run folders"
    ),
    "unknown_run": _unknown_run,
    "no_such_run": "there is no run {run!r}; `meshwave runs list` shows all runs",
    "ambiguous_run": "{run!r} is ambiguous; it matches {matches:list}; use a longer prefix",
    "read_only_run": "run {run} was opened read-only; open it with open_run to cancel it",
    # run folders
    "damaged_file": "{path} is damaged: {problem}; restore the file, or delete the run folder",
    "not_a_run_folder": (
        "{folder} is not a run folder: it has no {file}; name another run, or launch the design again"
    ),
    "program_of_another_design": "program.json does not match design.json",
    "impossible_stage_layers": "{stages} stages cannot hold {layers} of {total} layers",
    "text_of_design_missing": (
        "the run needs the text {name} of training.data; give the path of that file, or set training.data to null"
    ),
    "unreadable_text": "cannot read the training text {file}: {reason}",
    "empty_training_text": "{name} is empty; choose a text with content to train on",
    "text_too_large": (
        "{name} is {size_bytes:,} bytes long; the page accepts texts of up to {most_bytes:,} bytes; copy a longer one "
        "to {folder} and set training.data to its name"
    ),
    "incomplete_checkpoint": "{name} is not a complete checkpoint: it has no {file}",
    # hangs
    "hang": _hang,
    "process_receives": (
        "mesh {mesh}, process {process} has been waiting in step {step} for {action} from mesh {peer} for {seconds:quantity|s}"
    ),
    "message_undelivered": (
        "mesh {mesh}, process {process} waits for {action}, which mesh {peer} has sent: the link between them is broken "
        "or stalled"
    ),
    "process_waits_for_partner": (
        "mesh {mesh}, process {process} waits at {action} of step {step} for a process that has not reached it"
    ),
    "process_computes": "mesh {mesh}, process {process} has been at {action} of step {step} for {seconds:quantity|s}",
    "process_silent": (
        "mesh {mesh}, process {process} at {action} of step {step} has not reported for {seconds:quantity|s}: it, its "
        "host or the shared folder does not respond"
    ),
    "process_stopped": "mesh {mesh}, process {process} at {action} of step {step} is stopped by a signal (send SIGCONT)",
    "collective_not_begun": (
        "the flight recorder shows that mesh {mesh}, process {process} has not begun {operation} number {number} of "
        "process group {group}, in which {waiting:plural|process|processes} {waiting:list} {waiting:plural|waits|wait}"
    ),
    "collective_not_ended": (
        "the flight recorder shows that {operation} number {number} of process group {group} was begun by all of its "
        "processes ({waiting:list}) and does not end: a GPU or a link between them does not respond"
    ),
    "processes_wait_for_each_other": "these processes wait for each other",
    # stragglers
    "slow_process": (
        "compute on mesh {mesh}, process {process} takes {ratio:.2g} times as long as on the other processes of the mesh"
    ),
    "slow_mesh": "compute on mesh {mesh} takes {ratio:.2g} times as long as in the first steps",
    "slow_link_of_run": (
        "messages from mesh {source} to mesh {target} take {ratio:.2g} times as long as in the first steps of the run"
    ),
    "slower_steps": "steps take {after_s:quantity|s}, {ratio:.2g} times as long as the first ones ({before_s:quantity|s})",
    # comparisons and profiles of runs
    "prediction_in_units": (
        "the prediction is in cost units, which cannot be compared with seconds; use roofline or calibrated costs"
    ),
    "spans_of_another_program": "the spans in {folder} do not belong to its program; launch the design again",
    "no_recorded_step": "not all ranks have recorded a training step yet",
    "step_not_recorded": "step {step} was not recorded by all ranks; {count} complete steps were recorded",
    "no_recorded_processes": "not all processes of this mesh have recorded a step",
    "no_recorded_action": "the recording has no {action} on this mesh",
    "no_recorded_inside": "no recorded step has operator-level timings",
    "unknown_layer_steps": (
        "the recording contains layer operations that this version of Meshwave does not know: {steps:list}; update "
        "Meshwave"
    ),
    "profile_of_dry_run": (
        "a dry run waits instead of computing, so it cannot calibrate compute times; make the profile from a training run"
    ),
    # checkpoints
    "checkpoint_missing": "run {run} has no checkpoint; launch it with --checkpoint-every to write some",
    "checkpoint_of_another_model": (
        "model.{key} of the design differs from the checkpoint of run {run}; resume a design with the same model"
    ),
    "checkpoint_of_another_optimizer": "the checkpoint of run {run} holds the state of optimizer {optimizer}; use {optimizer}",
    "checkpoint_is_later": "run {run} has already trained {done} steps; set training.steps above {done}",
    # archives of runs
    "run_is_active": "run {run} has not ended; wait for it, or cancel it: meshwave runs cancel {run}",
    "run_exists": "run {run} already exists here; delete it first: meshwave runs delete {run}",
    "run_left_on_hosts": (
        "run {run} is deleted here, but its folder may be left on its hosts: {why}; remove it there, in the root folder of the "
        "target"
    ),
    "run_not_deleted": "run {run} cannot be deleted: {error}",
    "run_not_annotated": "tags and note of run {run} cannot be saved: {error}",
    "run_too_large_to_download": "the size of run {run} is {size}, and the page downloads at most {limit}; "
    "export it with: meshwave runs export {run}",
    "unknown_checkpoint": "there is no checkpoint {name!r} any more; reload the page",
    "weights_too_large_to_download": "the size of the weights of run {run} is {size}, and the page downloads at most {limit}; "
    "write them with: meshwave runs weights {run} --hugging-face FOLDER",
    "archive_exists": "{file} exists; choose another name with --out",
    "archive_unwritable": "cannot write {file}: {error}; choose another place with --out",
    "not_a_run_archive": "{file} is not an exported run: {reason}; choose a file that meshwave runs export has written",
    # launchers
    "unsupported_system": "runs need Linux or macOS; on Windows, start Meshwave inside WSL 2",
    "runs_without_torch": "runs need torch, which is not installed: pip install torch (see meshwave doctor)",
    "too_many_processes": _too_many_processes,
    "machine_memory": (
        "the {processes} processes need {needed_bytes:quantity|B} of memory together, and this machine has "
        "{available_bytes:quantity|B} and no GPU; use a smaller model or training.micro_batch_size, or "
        "launch on a machine with more memory"
    ),
    "crowded_cores": (
        "{processes} processes would share {cores} {cores:plural|core|cores}: the run is slow, and its times are dominated "
        "by waiting for a core"
    ),
    "rehearsal_only": "the launcher 'threads' supports dry runs only; add --rehearse, or use the launcher 'local'",
    "no_network": "the launcher 'threads' sends no messages over links; emulated hosts need processes",
    # dry runs
    "dry_run_too_long": (
        "at a time-dilation factor of {scale} a step would take {step}, and the limit is one day; use {most} or less"
    ),
    # emulated hosts
    "slow_link": _slow_link,
    "too_many_hosts": "{hosts} hosts are too many: the design has {processes} processes; use 1 to {processes} hosts",
    "hosts_not_emulated": "hosts cannot be emulated on this machine: {reason}. A run without --hosts needs no emulation",
    "process_count": "unsupported number of processes: {processes} (supported: 1 to {most})",
    "link_rates": "unsupported link rates: {intra:g} and {inter:g} bytes/s (supported: {least:g} to {most:g})",
    "uplink_faster_than_link": (
        "links between nodes ({inter:g} bytes/s) cannot be emulated faster than links inside nodes ({intra:g} bytes/s), "
        "because messages between nodes use both; lower the rate between nodes"
    ),
    # texts
    "text_missing": _text_missing,
    "text_not_found": "the file {file} does not exist; give the path of a text file",
    "text_not_a_file": "{file} is neither a file nor a folder; give the path of a text file or of a folder of texts",
}
