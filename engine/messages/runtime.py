"""Messages of the processes of a run: transfers of tensors, training, calibration and emulated networks."""

from __future__ import annotations

from collections.abc import Sequence

from meshwave.engine.messages import Message

Shape = Sequence[int]


def _shard(shape: Shape, dtype: str) -> str:
    return f"{' x '.join(map(str, shape)) or 'one element'} {dtype}"


def _unexpected_shard(who: str, tensor: str, shape: Shape, dtype: str) -> str:
    return f"{who} no shard of {tensor or 'the tensor'}, but got one of {_shard(shape, dtype)}"


def _missing_shard(who: str, tensor: str, shape: Shape, dtype: str) -> str:
    return f"{who} a shard of {_shard(shape, dtype)}{f' of {tensor}' if tensor else ''}, but got none"


def _wrong_shard(who: str, tensor: str, shape: Shape, dtype: str, given_shape: Shape, given_dtype: str) -> str:
    whole = f" of {tensor}" if tensor else ""
    return f"{who} a shard of {_shard(shape, dtype)}{whole}, but got {_shard(given_shape, given_dtype)}"


def _unsupported_sum_dtype(tensor: str, dtype: str) -> str:
    return f"partial sums{f' of {tensor}' if tensor else ''} of dtype {dtype} cannot be added; convert the tensor first"


def _tensor_placement(end: str, placement: str, axis: int, is_partial: bool) -> str:
    supported = "Shard, Replicate, Partial('sum')" if end == "source" else "Shard, Replicate"
    text = f"unsupported {end} placement {placement} on mesh axis {axis} (supported: {supported})"
    if end == "destination" and is_partial:
        return f"{text}; every receiver gets the sum, so use Replicate() or Shard()"
    return f"{text}; redistribute the tensor on its own mesh first"


def _cluster_status(status: int, log: str) -> str:
    return f"the cluster ended with status {status}{f': {log}' if log else ''}"


def _network_not_created(reason: str) -> str:
    return f"the network could not be created: {reason or 'the process that creates it was terminated'}"


MESSAGES: dict[str, Message] = {
    # resharding
    "layout_of_dtensor": "a DTensor has its own layout; do not pass source",
    "tensor_placement": _tensor_placement,
    "transfer_rejected": "process {process} rejected the transfer: {reason}",
    "transfer_disagreement": (
        "processes disagree on the {name}: {value} on process {first}, {other} on process {process}; no data was sent"
    ),
    "tensor_disagreement": (
        "processes {first} and {process} disagree on the shape, dtype or layouts of tensor {tensor}; no data was sent"
    ),
    "transfer_incomplete": "no process gave the {name} of the transfer; at least one must",
    "host_count": "hosts has {given} entries for {processes} processes",
    "host_disagreement": "process {process} is on host {host} in one mesh and on host {other} in another",
    "process_outside_group": "the {end} mesh has process {process}, but there are {processes} processes (0 to {last})",
    "repeated_process": "process {process} occurs twice in the {end} mesh",
    "shard_dim": "the {end} has Shard({dim}) on mesh axis {axis}, but the tensor has {dims} dims",
    "element_size": "the plan is for elements of {planned} bytes, but {dtype} has {given}",
    "unexpected_shard": _unexpected_shard,
    "missing_shard": _missing_shard,
    "wrong_shard": _wrong_shard,
    "overlapping_shards": "the shard that is sent and the one that is received share memory; pass a new tensor",
    "unsupported_sum_dtype": _unsupported_sum_dtype,
    "transfer_timeout": (
        "process {process} timed out waiting for process {awaited} to agree on a transfer: processes {processes} must "
        "all call it, with the same tensors and in the same order ({reason})"
    ),
    "ambiguous_tensor_name": "{count} tensors of the transfer are named {name!r}; pass a list instead",
    "tensor_count": "got {given} tensors for a transfer of {expected}; pass None for missing ones",
    "no_gloo_backend": (
        "CPU tensors need gloo, but the default group has no gloo backend; initialize it with backend='gloo' or "
        "'cpu:gloo,cuda:nccl'"
    ),
    # training
    "torchrun_process_count": (
        "this design needs {devices} processes, one per device: torchrun --standalone --nproc-per-node {devices} "
        "{program}"
    ),
    "text_not_given": "the design trains on {text}; pass the path of that text with --data",
    "text_file_missing": "--data: {path} does not exist",
    "text_not_copied": "training.data names {text}, but the run folder has no copy of it",
    "copied_text_missing": "the training text {path} does not exist; launch the design again to copy it",
    "text_too_short": (
        "the training text {name} holds {size} bytes or tokens, but one sequence needs {window}; use a longer text or a shorter "
        "model.sequence"
    ),
    "no_long_document": (
        "no document of {name} has two tokens or more; set training.document_end to the token that ends each document"
    ),
    "unconverted_data": (
        "an exported script cannot tokenize texts or read JSON lines ({file}); pass the converted data of a run with "
        "--data: the file data.* of its folder"
    ),
    "token_outside_vocabulary": (
        "{name} has tokens from {lowest} to {highest}, but model.vocab is {vocab}; set model.vocab above all tokens"
    ),
    "process_variable_missing": (
        "{variable} is not set; start the worker with torchrun, or set RANK, WORLD_SIZE and LOCAL_RANK"
    ),
    "started_process_count": "{processes} processes were started, but the design has {devices} devices in {meshes} meshes",
    "sharded_slots": "sharded parameters do not support schedules whose forwards and backwards share slots",
    "program_missing": "{folder} has no program.json; launch the design again",
    "program_of_other_design": "the program has {ranks} ranks, but the design has {meshes} meshes",
    "damaged_checkpoints": (
        "no checkpoint of the run is intact ({count} damaged; {name} of checkpoint {checkpoint}); if it resumes another "
        "run, delete checkpoint {checkpoint} of that run, so that it resumes from an earlier one"
    ),
    "skipped_checkpoint": "skipped checkpoint {checkpoint}, which is damaged",
    "checkpoint_not_loaded": "cannot load checkpoint {checkpoint}: {reason}",
    "no_float8": (
        "{device} does not support fp8 matrix products (NVIDIA GPUs do from compute capability 8.9); set "
        "training.linear_precision to same"
    ),
    "no_attention_kernel": (
        "torch cannot compute the attention of this model with training.attention_kernel = {kernel} on {device}; set it to "
        "default ({reason})"
    ),
    "no_accelerator": "torch finds no accelerator on this machine",
    # calibration
    "one_bandwidth": "an emulated cluster needs two bandwidths: inside nodes and between them",
    "gpu_links": "links between GPUs of this machine cannot be emulated; use one node without bandwidths",
    "process_cluster_size": "unsupported number of processes: {nodes} x {per_node} (supported: 1 to {most})",
    "cluster_not_emulated": (
        "links cannot be emulated here: {reason}; omit the bandwidths to use the loopback interface without emulation"
    ),
    "cluster_process_failed": "{who} of the cluster failed: {reason}",
    "cluster_status": _cluster_status,
    "no_device_backend": "this torch has no backend for messages between devices of type {device}",
    "torch_not_installed": "calibration needs torch, which is not installed: pip install torch (see meshwave doctor)",
    "unknown_parts": "unknown parts: {parts} (known: {known})",
    "contention_of_one_process": "contention cannot be measured with 1 process; use 2 ranks or more",
    "no_nvidia_gpu": "the benchmark needs an NVIDIA GPU that nvidia-smi lists; this machine has none",
    "different_outputs": (
        "{case}: outputs of {schedule} and {other} differ by {difference:.1e} (tolerance {tolerance:.0e})"
    ),
    "other_order_of_torch": "the order of computations differs from that of torch's {schedule}",
    "different_results": (
        "the results of the runtimes differ: losses {loss} and {other_loss}, gradients by up to {difference:.1e}"
    ),
    # the emulated network
    "network_not_created": _network_not_created,
    "network_command_failed": "{command} failed: {reason}",
}
