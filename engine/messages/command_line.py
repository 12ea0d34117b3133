"""Messages of the command line: refused options, and notes on results."""

from __future__ import annotations

from meshwave.engine.messages import Message

MESSAGES: dict[str, Message] = {
    "error": "{reason}",
    "file": "{reason}",
    "designer_not_in_engine": "the engine does not include the designer; start the designer with: meshwave serve",
    "unknown_rank": "rank {rank} does not exist; the design has ranks 0 to {last}",
    "binary_to_terminal": "{format} is binary; name a file with --out",
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
    "profile_not_written": "{reason}; the measurements were saved in {place}",
}
