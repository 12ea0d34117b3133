"""Messages about documents: their text, their keys and values, conflicts between the parts of a design, and fixes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from meshwave.engine.messages import Message, fill_template, join_list
from meshwave.engine.units import quantity


def _wrong_type(value: str, expected: Sequence[str]) -> str:
    return f"{value} should be {join_list(expected, 'or', len(expected))}"


_BOUNDS = {"minimum": "at least", "maximum": "at most", "above": "more than", "below": "less than"}


def _out_of_range(value: str, unit: str = "", **bound: float) -> str:
    ((relation, limit),) = bound.items()
    return f"{value} should be {_BOUNDS[relation]} {quantity(limit, unit, 12) if unit else f'{limit:,.16g}'}"


def _indivisible_width(heads: int, hidden: int, near: int, suitable: Sequence[int]) -> str:
    advice = fill_template("{suitable:or} heads, or ", suitable=suitable) if suitable else ""
    return f"{heads} heads do not divide a hidden width of {hidden}; use {advice}a width of {near}"


def _indivisible_heads(tp: int, mesh: str, heads: int, sizes: Sequence[int], suitable: Sequence[int]) -> str:
    advice = fill_template(", or {suitable:or} heads", suitable=suitable) if suitable else ""
    wrong = f"tp={tp} of mesh {mesh} does not divide the {heads} heads of the model"
    return fill_template("{wrong}; use tp={sizes:or}{advice}", wrong=wrong, sizes=sizes, advice=advice)


def _wrong_mesh_size(mesh: str, count: int, axes: Mapping[str, int], product: int) -> str:
    written = " x ".join(f"{axis}={size}" for axis, size in axes.items()) or "no axis"
    template = (
        "mesh {mesh} has {count} {count:plural|device|devices}, but {written} needs {product}; "
        "resize the mesh or change an axis"
    )
    return fill_template(template, mesh=mesh, count=count, written=written, product=product)


def _mesh_axes(axes: Mapping[str, Mapping[str, int]]) -> str:
    """Return "dp=2 tp=1 on A, dp=4 tp=1 on B"."""
    return ", ".join(
        f"{' '.join(f'{axis}={size}' for axis, size in each.items())} on {name}" for name, each in axes.items()
    )


def _different_tp(schedule: str, axes: Mapping[str, Mapping[str, int]]) -> str:
    return (
        f"{schedule} places replicas of a stage on several meshes, which must have the same tp ({_mesh_axes(axes)}); "
        "use one tp on all meshes"
    )


def _batched_resharding(axes: Mapping[str, Mapping[str, int]]) -> str:
    return (
        f"transfers can be batched only between meshes with tp=1, equal dp and equal cp ({_mesh_axes(axes)}); "
        "change the axes, or set transfer.batched to false"
    )


def _unsupported_placement(schedule: str, own: Sequence[int]) -> str:
    template = (
        "{schedule} supports only the placement {own}, with the meshes in any order; "
        "use null, another order of the meshes, or a custom schedule"
    )
    shown = ", ".join(map(str, own[:8])) + (", ..." if len(own) > 8 else "")
    return fill_template(template, schedule=schedule, own=shown)


def _set_value(key: str, value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return f"set {key} to {text if len(text) <= 40 else f'{text[:37]}...'}"


MESSAGES: dict[str, Message] = {
    # the text of a document
    "invalid_toml": "the TOML is invalid: {reason}",
    "nested_toml": "the TOML is nested too deeply",
    "invalid_json": "line {line}, column {column} is not JSON: {reason}",
    "nested_json": "the JSON of the {document} is nested too deeply",
    "wrong_encoding": "the file is not JSON text: byte {byte} is not {encoding}; save it as UTF-8",
    "long_number": "the file contains a number with more than {digits} digits; shorten it",
    "unwritable_json": "the document cannot be written as JSON: {reason}",
    "repeated_key": "the key {key!r} occurs twice in one object; keep one",
    "wrong_document": "a {document} is a JSON object with {parts}",
    "missing_format": 'the document does not state its format; add "format": "{format}"',
    "unknown_format": 'unsupported design format {value}; use "{format}"',
    "newer_format": (
        "this design has format version {version}, and this Meshwave reads versions up to {supported}; update Meshwave"
    ),
    "too_many_errors": "{count:,} values are invalid; check that this is the right file",
    # single values
    "missing_path": "the document has no {path}",
    "unknown_key": "unknown key {key!r}. {known:hint}",
    "unused_option": "{key!r} is an option of {schedules:list}, not of {schedule}; remove it",
    "unknown_name": "unknown value {value!r}. {known:hint}",
    "unknown_kind": "unknown {noun} {name}. {known:hint}",
    "missing_key": "{key!r} is missing; add it",
    "missing_kind": "{key!r} is missing; it selects the kind of this section",
    "wrong_type": _wrong_type,
    "out_of_range": _out_of_range,
    "empty_list": "the list is empty; give at least one entry",
    "long_list": "the list has more than {maximum:,} entries; shorten it",
    "empty_text": "the text is empty; enter at least one character",
    "long_text": "the text has {length} characters; use at most {maximum}",
    "control_character": "{text} contains a control character; remove it",
    "invalid_value": "{reason}",
    # parts of a design
    "cluster_size": (
        "{nodes} x {devices_per_node} = {devices} devices exceed the maximum of {maximum}; use {fewer} nodes or fewer"
    ),
    "mesh_size": _wrong_mesh_size,
    "indivisible_width": _indivisible_width,
    "stage_cost_columns": (
        "the design gives costs of {forward} forwards, {input} input gradients and {weight} weight gradients; give one of "
        "each per stage"
    ),
    "top_k": "top_k = {top_k} exceeds the {experts} experts of the model; use {experts} or less",
    # a design as a whole
    "failed_search": "the search failed: {reason}",
    "empty_name": "the design has no name; enter one, so that its runs can be identified",
    "too_many_meshes": "there are {count:,} meshes, and a design has at most {maximum:,}; remove some",
    "unknown_device": (
        "mesh {mesh} uses {devices:plural|device|devices} {devices:list}, but the cluster has devices 0 to {last} "
        "({nodes} x {devices_per_node}); move the mesh or add nodes"
    ),
    "repeated_device": (
        "mesh {mesh} lists {devices:plural|device|devices} {devices:list} more than once; list each device once"
    ),
    "shared_device": (
        "{devices:plural|device|devices} {devices:list} of mesh {mesh} already {devices:plural|belongs|belong} to mesh "
        "{other}; a device belongs to one mesh"
    ),
    "duplicate_mesh_name": "meshes {first} and {second} are both called {name!r}; rename one",
    "scattered_devices": (
        "the {count} devices of mesh {mesh} are not a rectangle of nodes x devices; "
        "list neighbouring devices, or resize the mesh on the cluster"
    ),
    "indivisible_heads": _indivisible_heads,
    "unsupported_tensor_parallelism": (
        "a {model} does not support tensor parallelism (tp={tp} of mesh {mesh}); use tp=1 and dp={dp}"
    ),
    "end_of_text_without_tokenizer": (
        "training.end_of_text is a token of a tokenizer, and the design names none; set training.tokenizer, or remove it"
    ),
    "document_end_without_end_of_text": (
        "training.document_end is the token of training.end_of_text, which is not set; name a token of the tokenizer, such as "
        "<|endoftext|>, or set training.document_end to null"
    ),
    "documents_without_text": "a {model} does not train on text, so it has no documents; set training.document_end to null",
    "unused_document_lengths": (
        "predictions use training.document_lengths only with training.document_end; set the token that ends a document"
    ),
    "padding_without_documents": (
        "training.pad_documents needs training.document_end; set the token that ends a document, or pad_documents to false"
    ),
    "documents_with_compile": (
        "blocks are compiled for sequences of one length; set training.compile to false, or training.document_end to null"
    ),
    "tokenizer_without_data": "the built-in sample text is read as bytes; set training.data, or remove the tokenizer",
    "unused_unsharded_stages": (
        "training.unsharded_stages has no effect with training.sharding {sharding!r}; "
        "set it to null, or training.sharding to parameters"
    ),
    "unused_blocking_gathers": (
        "training.blocking_gathers has no effect, because no block gathers its weights; set it to false, or training.sharding "
        "to parameters without training.unsharded_stages"
    ),
    "unused_gradient_reduction": (
        "training.gradient_reduction has no effect with training.sharding {sharding!r}, which reduces gradients once per "
        "step; set it to microbatch, or training.sharding to gradients or parameters"
    ),
    "unused_gradient_buckets": (
        "training.gradient_buckets has no effect with training.sharding {sharding!r}, whose backwards reduce the gradients "
        "of each block; set it to 1, or training.gradient_reduction to step"
    ),
    "unshared_gradient_buckets": (
        "training.gradient_buckets has no effect, because no devices share weights and no gradients are reduced; set it to 1"
    ),
    "unused_data": "a {model} generates its data from the seed and reads no text; set training.data to null",
    "stage_count": "{schedule} needs {stages} stages, but pipeline.stages has {given} entries; give {stages}, or null",
    "divided_mtp_layers": (
        "the last {mtp_layers} layers predict further tokens and must be on the last stage, which has {given} layers"
    ),
    "stage_layers": "the stages have {given} layers, but the model has {layers}; change a stage or the model",
    "stage_cost_count": (
        "costs are given for {given} {given:plural|stage|stages}, but the design has {stages}; give one row per stage, "
        "or redistribute the costs"
    ),
    "too_few_layers": (
        "{stages} stages need at least {stages} layers, and the model has {layers}; use fewer stages or more layers"
    ),
    "step_size": (
        "{stages} stages x {microbatches} microbatches, forward and backward, are {computations:,} "
        "computations, and a step has at most {maximum:,}; use fewer microbatches or stages"
    ),
    "placement_mesh": "stage {stage} is placed on mesh {mesh}, but there are meshes 0 to {last}",
    "placement_count": "{stages} stages need {stages} placement entries, but {given} are given; give one per stage, or null",
    "unsupported_placement": _unsupported_placement,
    "unknown_recomputed_stage": "there is no stage {stage} to recompute; there are stages 0 to {last}",
    "repeated_recomputed_stage": "stage {stage} is listed more than once; list each stage once",
    # orders of actions
    "action_beyond_microbatches": "{action} belongs to microbatch {microbatch}, but there are only {microbatches} microbatches, numbered from 0",
    "order_table_size": (
        "{stages} stages x {microbatches} microbatches are too many (at most {maximum:,} in all); use fewer of either"
    ),
    "damaged_program": "the program is damaged: {reason}; launch the design again",
    "program_digest": "the checksum of the program is {digest}, but its header states {stated}; launch the design again",
    "another_program": (
        "the program of the run ({measured}) differs from that of the open design ({predicted}); open the run's own design to "
        "compare them"
    ),
    "no_stages": "there are no stages to hold the layers; give every mesh a computation",
    "missing_orders": "a custom schedule needs its actions: a list for each mesh, such as 0F0 0B0",
    "unused_orders": "actions apply only to the custom schedule, not to {schedule}; remove them or change the schedule",
    "unused_placement": "the orders of a custom schedule define the placement; remove pipeline.placement",
    "order_count": (
        "there {given:plural|is|are} {given} {given:plural|list|lists} of actions for {expected} "
        "{expected:plural|mesh|meshes}; give one per mesh"
    ),
    "unnecessary_action": "{action} is not a computation; remove it: sends, receives and updates are added automatically",
    "undefined_stage": "{action} belongs to stage {stage}, but {layers} layers allow at most {layers} stages",
    # what runs do not support
    "indivisible_micro_batch": (
        "a microbatch has {sequences} sequences (micro_batch_size x dp of mesh {first}), which the dp={dp} replicas of "
        "mesh {mesh} cannot share evenly; set training.micro_batch_size to a multiple of {multiple}, or change dp"
    ),
    "unequal_replicas": _different_tp,
    "batched_resharding": _batched_resharding,
    "batched_dry_run": (
        "a dry run cannot simulate batched transfers; set transfer.batched to false, or run the design without --rehearse"
    ),
    "transfer_model_dry_run": (
        "a dry run cannot simulate the transfer model {transfer_model}; set cost.transfer_model to {supported:or}"
    ),
    "vocabulary": "a {model} reads text as bytes and needs a vocab of at least {minimum}, not {vocab}",
    "sharded_replicas": (
        "{schedule} replicates each stage on two meshes that all-reduce whole gradients, but sharding {sharding} shards "
        "them within one mesh; use sharding none or another schedule"
    ),
    "indivisible_sequence": (
        "sequence parallelism needs a number of tokens that is divisible by tp; mesh {mesh} has {sequence} tokens and tp={tp}"
    ),
    "unsupported_offload": "runs cannot combine activation offload with this value of {path}; change one of them",
    "tied_sharding": (
        "runs with sharding {value} of models with tied embeddings or multi-token prediction need the same number of "
        "data-parallel copies on all meshes, but the numbers are {copies:list}"
    ),
    "unequal_tied_meshes": (
        "runs of models with tied embeddings or multi-token prediction need the same tp on all meshes, but tp is {sizes:list}"
    ),
    "fp8_products": (
        "runs multiply in fp8 only in language models, without compiled blocks and in a precision of at most 32 bits; change "
        "{parts:list}, or set training.linear_precision to same"
    ),
    "fp4_products": (
        "runs cannot multiply in fp4: torch has such products only on NVIDIA GPUs of compute capability 10.0 or higher, for "
        "which Meshwave has no kernel; set training.linear_precision to fp8 or same; the prediction includes fp4"
    ),
    "unsupported_training": "runs do not support training.{key} = {value} yet; the prediction includes it",
    "unfused_attention": (
        "runs cannot use the attention kernel {kernel} with {parts:list}; set training.attention_kernel to default"
    ),
    "unsupported_context_parallelism": (
        "context parallelism divides the tokens of a sequence, which a {model} does not have; set cp to 1 on mesh {mesh}"
    ),
    "indivisible_chunks": (
        "runs with cp={cp} divide each sequence into {chunks} equal chunks, so that all devices have equal work, but a "
        "sequence has {sequence} tokens"
    ),
    "indivisible_context": "cp = {cp} does not divide the sequence of {sequence} tokens of mesh {mesh}; use a divisor",
    "compiled_recompute": "runs of compiled layers recompute whole stages only, not parts of a layer; the prediction includes it",
    "batched_evaluation": "an evaluation cannot batch its messages; set transfer.batched to false or remove eval_every",
    "unsupported_architecture": (
        "runs do not support the value of {parts:list} together with the other settings of the model; the prediction includes it"
    ),
    # labels of fixes, as on a button: the edit that removes a problem
    "set_value": _set_value,
    "remove_key": "remove {key}",
    "rename_key": "rename {key} to {name}",
    "rename_mesh": "rename mesh {number} to {name}",
    "use_axes": "use dp={dp} tp={tp} on mesh {mesh}",
    "use_axes_everywhere": "use tp={tp} on all meshes",
    "move_mesh": "move mesh {mesh} to {devices:plural|device|devices} {devices:list}",
    "keep_devices": "use only {devices:plural|device|devices} {devices:list} for mesh {mesh}",
    "use_nodes": "use {nodes} nodes",
    "use_meshes": "use {count} meshes",
    "use_expert_groups": "set ep to {ep} and esp to {esp}",
    "equal_blocks": "place the experts in equal blocks",
    "use_roofline": "use roofline costs",
    "remove_action": "remove {action}",
    "use_microbatches": "use {microbatches} {microbatches:plural|microbatch|microbatches}",
    "balance_stages": "balance the stages by cost",
    "spread_stage_costs": "redistribute the costs over {stages} {stages:plural|stage|stages}",
    "remove_stage_costs": "remove the costs per stage",
    "default_placement": "use the default placement",
}
