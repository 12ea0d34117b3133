"""Messages of the command line: refused options, notes on results, benchmarks and ``meshwave doctor``."""

from __future__ import annotations

from collections.abc import Sequence

from meshwave.engine.messages import Message


def _gpu_counts(names: Sequence[str]) -> str:
    return ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))


def _torch_version(version: str, cuda: str | None) -> str:
    return f"{version}, {f'built for CUDA {cuda}' if cuda else 'without CUDA'}"


MESSAGES: dict[str, Message] = {
    "error": "{reason}",
    "file": "{reason}",
    "designer_not_in_engine": "the engine does not include the designer; start the designer with: meshwave serve",
    "unknown_rank": "rank {rank} does not exist; the design has ranks 0 to {last}",
    "binary_to_terminal": "{format} is binary; name a file with --out",
    "unwritable_output": "the output cannot be written: {reason}",
    "kept_file": "kept {file}, which differs from the example; to copy the example, move the file elsewhere",
    "folder_not_made": "the folder {folder} cannot be created: {reason}",
    "boundary_of_transfer": (
        "--boundary applies to designs only; a transfer document names its own source and destination"
    ),
    "mesh_of_expert_layer": "--mesh applies to designs only; an expert-layer document defines its own ranks",
    # run and runs
    "too_few_steps": "{steps} is too few; a run has at least one step",
    "scale_without_dry_run": "--scale applies to dry runs; add --rehearse",
    "bandwidth_without_hosts": (
        "--inter-bandwidth and --intra-bandwidth apply to emulated hosts; add --hosts N for their number"
    ),
    "checkpoints_of_dry_run": (
        "a dry run has no training state to checkpoint; remove --checkpoint-every and --resume, or remove --rehearse"
    ),
    "unused_initial_weights": (
        "--init gives the weights of the first step; a dry run has none, and a resumed run has its own: remove --init, "
        "or the other option"
    ),
    "no_metrics": "run {run} has no metrics yet; wait for its first step",
    "run_without_weights": "run {run} has no weights.safetensors; only a run with --checkpoint-every that succeeds has it",
    "weights_of_kind": "weights of a model of kind {kind} cannot be written as a Hugging Face checkpoint",
    "keep_without_checkpoints": "--keep-checkpoints applies to runs that write checkpoints; add --checkpoint-every",
    "unknown_interval": "{value!r} is not an interval; use a number of steps, such as 50, or a time, such as 10min",
    "unknown_time": "{value!r} is not a time; use seconds, such as 90, or a number with s, min or h, such as 10min",
    "too_few_checkpoints": "{count} is too few; keep at least one checkpoint",
    "no_runs": "there are no runs yet; start one with: meshwave run DESIGN",
    "not_predictable": "the run cannot be compared with a prediction: {reason}",
    "calibrated_elsewhere": "the prediction uses {profile}, {reason}; meshwave calibrate measures this machine",
    # calibrate
    "indivisible_ranks": "{ranks} ranks cannot be divided into nodes of {per_node}; use a divisor",
    "option_of_machine": "this option applies to a calibration of this machine only; omit it with --on",
    "unreadable_slowdown": "{value!r} is not a slowdown such as 3=1.5 for a device or A:B=2 for a link",
    "not_two_rates": "{value!r} is not two rates in bytes/s, such as 250e6,50e6",
    "not_whole_numbers": "{value!r} is not a list of positive integers, such as 2,4",
    "unknown_word": "unknown value {word!r}. {hint}",
    "single_rank": "one process has no links to measure; use at least 2 ranks, or --parts blocks",
    "too_few_rounds": "{rounds} rounds are too few; use 1 or more",
    "too_few_seconds": "{seconds:g} is too short; use more than 0 seconds",
    "profile_not_written": "{reason}; the measurements were {place}",
    # benchmarks
    "no_matching_case": "no design of this benchmark has {word!r} in its name or group; the groups are {groups:list}",
    "no_accuracy_results": "there are no results to draw; measure some with meshwave bench accuracy",
    "unreadable_results": "cannot read {path}: {reason}",
    "invalid_results": "{path} is not a results file of this benchmark ({problem}); use another file",
    "unreadable_runs": "cannot read the published runs in {path}: {reason}",
    "option_of_other_parts": (
        "{options:list} {options:plural|applies|apply} only to {parts:list}; name the part to measure"
    ),
    "benchmark_process_failed": "process {process} of the benchmark failed: {reason}",
    "page_bench_without_chromium": "the benchmark of the page needs Chromium; {remedy}",
    "browser_not_started": "the browser did not start",
    "browser_error": "the browser reports an error of {method}: {error}",
    "page_without_session": "the page at {link} has no session; see the log of the server",
    "refused_gesture": "the page refused the gesture {gesture}: {reason}",
    "connection_closed": "the server closed the connection: {reason}",
    "no_process_memory": "the server reports no memory: it is read from /proc, which exists on Linux only",
    "benchmark_run_failed": "{name}: {reason}",
    "no_first_step": "run {run} did not reach its first step: {reason}",
    "nothing_in_time": "no {what} within {seconds:.0f} seconds",
    "launch_option": "this option applies only to the part 'launch'; run meshwave bench launch",
    "runs_option": "--runs applies only to the part 'published'; run meshwave bench published --runs FILE",
    "run_unpriced": "the step time of the run could not be predicted: {reason}",
    "run_not_a_step": "the row is a measurement of kind {kind}, not a training step",
    "run_incomplete": "the source does not state {keys:list}",
    "run_unreadable": "the row has unusable values: {problems:list}",
    "run_device": "unknown device {device}; known devices: {known:list}",
    "run_mlp": "unsupported MLP {mlp} (supported: {known:list})",
    "run_recompute": "unsupported recomputation {recompute} (supported: {known:list})",
    "run_degrees": "tp x cp x pp x dp = {product}, but the run has {devices} devices",
    "run_batch": "a batch of {gbs} sequences cannot be divided into microbatches of {mbs} on {dp} replicas",
    # requirements of a machine, and how to get missing ones
    "check_failed": "the check failed: {error}",
    # Python and libraries
    "python_version": "{implementation} {version} on {platform}",
    "newer_python_remedy": "install Python {oldest} or newer",
    "package_version": "{version}",
    "package_missing": "not installed; {needed_by} needs it",
    "package_remedy": "pip install {package}",
    "numba_missing": "not installed; large designs whose messages share links are simulated ten times slower",
    # torch
    "torch_missing": "not installed; runs need it",
    "torch_remedy": "pip install torch; planning and predicting work without it",
    "torch_broken": "{version}, which does not work: {reason}",
    "torch_reinstall_remedy": "reinstall torch",
    "torch_version": _torch_version,
    "gpus": _gpu_counts,
    "no_gpus": "no GPU that torch can use; runs use the CPU",
    "gpus_without_torch_build": "a GPU driver is installed, but this torch cannot use it; runs use the CPU",
    "torch_build_remedy": (
        "install a build of torch for the CUDA version of the driver: https://pytorch.org/get-started/locally"
    ),
    "gloo_available": "available (used on CPUs and when processes share a GPU)",
    "gloo_missing": "not included in this build of torch; runs on CPUs need it",
    "gloo_remedy": "install an official build of torch",
    "nccl_version": "{version}",
    "nccl_without_gpu": "available, but there is no GPU to use it on",
    "nccl_missing": "not included in this build of torch; GPUs communicate over gloo, which is slow",
    "nccl_remedy": "install a CUDA build of torch",
    "driver_gpu": "GPU {index}: {description}",
    "driver_broken": "nvidia-smi fails: {reason}",
    # hardware and system
    "cores": "{cores}; with more processes than cores, processes are time-sliced, which distorts measured timelines",
    "memory_size": "{bytes:quantity|B}",
    "fork_available": "runs start from a warm process, in a fraction of a second",
    "fork_unsafe": (
        "forking from a process with torch loaded is not safe on this system, so each process imports torch itself, which "
        "takes seconds"
    ),
    "orphans_killed": "child processes are killed if the launcher dies",
    "orphans_by_pipe": "no parent-death signal on this system; a run ends when the pipe to its launcher closes",
    "loopback_works": "127.0.0.1 is reachable",
    "loopback_broken": "127.0.0.1 does not answer: {error}",
    "loopback_remedy": "allow loopback connections; the designer and gloo need them",
    "links_emulated": "can be emulated: run --hosts, calibrate --shaped and bench moe emulate nodes on this machine",
    "links_not_emulated": (
        "cannot be emulated: `meshwave run --hosts` is not available, `calibrate` measures the loopback, and `bench` skips its moe part"
    ),
    "links_remedy": "{reason}",
    "folder_writable": "{folder}, {free_bytes:quantity|B} free",
    "folder_unwritable": "{folder} cannot be written: {error}",
    "folder_remedy": "set $MESHWAVE_HOME to a folder that can be written",
    "disk_full_remedy": "free some disk space",
    "chromium_version": "{version}, {path}",
    "chromium_missing": "not found",
    "chromium_remedy": (
        "only the browser tests need it: install it (Debian, Ubuntu: apt-get install chromium; Fedora: dnf install "
        "chromium; macOS: brew install --cask google-chrome; anywhere: playwright install chromium) or set CHROME_BIN "
        "to the path of a Chrome"
    ),
}
