"""Messages of launches and runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from meshwave.engine.messages import Message, fill, render
from meshwave.engine.units import quantity


def _slow_link(rate: str, least: float, scale: str | None) -> str:
    dilation = f", or use a time-dilation factor below {scale}" if scale is not None else ""
    return f"an emulated link of {rate} bytes/s is too slow; use {least:g} bytes/s or more{dilation}"


def _text_missing(name: str, folders: Sequence[str]) -> str:
    return (
        f"the text {name} does not exist (looked in {', '.join(folders)}); put it there, choose it in the Run panel or "
        "by meshwave run --data FILE, or set data to null for the built-in sample text"
    )


def _too_many_processes(processes: int, most: int) -> str:
    return fill(
        "the meshes have {processes} {processes:plural|device|devices}, and at most {most} "
        "{most:plural|process|processes} can run here; use fewer devices",
        processes=processes,
        most=most,
    )


def _hang(seconds: float, chain: Sequence[Mapping[str, Any]]) -> str:
    links = "; ".join(render(each["code"], each["params"]) for each in chain)
    return f"no action of any process ended for {quantity(seconds, 's')}: {links}"


MESSAGES: dict[str, Message] = {
    # hangs
    "hang": _hang,
    "process_receives": (
        "mesh {mesh}, process {process} of step {step} waits for {action} from mesh {peer} since {seconds:quantity|s}"
    ),
    "message_undelivered": (
        "mesh {mesh}, process {process} waits for {action}, which mesh {peer} has sent: the link between them is broken "
        "or stalled"
    ),
    "process_waits_for_partner": (
        "mesh {mesh}, process {process} waits at {action} of step {step} for a process that has not reached it"
    ),
    "process_computes": "mesh {mesh}, process {process} is at {action} of step {step} since {seconds:quantity|s}",
    "process_silent": (
        "mesh {mesh}, process {process} at {action} of step {step} has not reported for {seconds:quantity|s}: it, its "
        "host or the shared folder does not respond"
    ),
    "process_stopped": "mesh {mesh}, process {process} at {action} of step {step} is stopped by a signal (send SIGCONT)",
    "processes_wait_for_each_other": "these processes wait for each other",
    "checkpoint_missing": "run {run} has no checkpoint; launch it with --checkpoint-every to write some",
    "checkpoint_of_another_model": "the checkpoint of run {run} has another model.{key}; resume a design of the same model",
    "checkpoint_of_another_optimizer": "the checkpoint of run {run} holds the state of optimizer {optimizer}; use {optimizer}",
    "checkpoint_is_later": "run {run} has trained {done} steps already; set training.steps above {done}",
    # the record of runs
    "run_is_active": "run {run} is not over; wait for it, or cancel it: meshwave runs cancel {run}",
    "run_exists": "run {run} exists here already; delete it first: meshwave runs delete {run}",
    "run_not_deleted": "run {run} cannot be deleted: {error}",
    "archive_exists": "{file} exists; choose another name with --out",
    "archive_unwritable": "cannot write {file}: {error}; choose another place with --out",
    "not_a_run_archive": "{file} is not an exported run: {reason}; choose a file that meshwave runs export has written",
    # launchers
    "unsupported_system": "runs need Linux or macOS; on Windows, start Meshwave inside WSL 2",
    "runs_without_torch": "runs need torch, which is not installed: pip install torch (see meshwave doctor)",
    "too_many_processes": _too_many_processes,
    "machine_memory": (
        "the {processes} processes would hold {needed_bytes:quantity|B} together, and this machine has "
        "{available_bytes:quantity|B} and no GPU; train a smaller model or micro_batch_size here, or launch on a "
        "machine with more memory"
    ),
    "rehearsal_only": "the launcher threads supports dry runs only; add --rehearse, or use the launcher local",
    "no_network": "the launcher threads sends no messages over links; emulated hosts need processes",
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
        "links of {intra:g} bytes/s inside nodes and {inter:g} between them cannot be emulated: what leaves a node also "
        "uses a link inside it; make the one between nodes the slower"
    ),
    # texts
    "text_missing": _text_missing,
    "text_not_found": "the file {file} does not exist; give the path of a text",
    "text_not_a_file": "{file} is not a file; training needs a text",
}
