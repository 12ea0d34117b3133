"""Messages about files of other tools that are imported, and about exports."""

from __future__ import annotations

from meshwave.engine.messages import Message

MESSAGES: dict[str, Message] = {
    "import_not_text": "{file} is not text; save it as text in UTF-8",
    "too_few_import_devices": (
        "the file needs {needed} {needed:plural|device|devices}, and the cluster of {name!r} has {devices}; add nodes to it, "
        "or import the file into a new design"
    ),
    "imported_into_new_design": (
        "the file needs {needed} {needed:plural|device|devices}, and the cluster of {name!r} has {devices}: it was imported "
        "into a new design; undo restores {name!r}"
    ),
    "unknown_import": "{file} is not in a format that can be imported ({formats:list}); name its format with --from",
    "trace_without_actions": (
        "the trace has no ranges that name computations, such as PP:2F0, Forward 3 or forward-compute; record it with "
        "torch.profiler while torch.distributed.pipelining or Megatron runs"
    ),
    "damaged_trace": "the file is not a Chrome trace: {reason}",
    "damaged_trace_events": (
        "the file is not a Chrome trace: 'traceEvents' must be a list of events, and each range needs the fields "
        "'name', 'pid', 'ts' and 'dur'"
    ),
    "trace_without_design": "a trace must be imported into a design; name the design with --into",
    "trace_of_more_processes": "the trace contains process {process}, but the design has only {processes} processes",
    "trace_without_stages": (
        "the ranges of the trace name no stage, and mesh {mesh} has {stages} stages; record a schedule whose ranges name "
        "stages"
    ),
    "trace_of_other_actions": "process {process} computed {action}, which the schedule of the design does not contain",
    "incomplete_trace": "the trace lacks {count} computations of the design, such as {actions:list}",
    "unreadable_stage_times": (
        "line {line} is invalid: the stage must be a whole number, and the other columns times from 0 to 1,000,000,000; a "
        "header names the columns stage, forward, and backward or input and weight"
    ),
    "repeated_stage_times": "line {line} states stage {stage} again; keep one row for each stage",
    "incomplete_stage_costs": "stage {stage} has no {column}; give forward, input gradient and weight gradient of each stage",
    "several_files": "only traces can consist of several files; give one file",
    "ambiguous_import": "{file} may be in several formats: {formats:list}; name one with --from",
    "no_design_in_link": "the link has no design: expected #design= with a compressed document",
    "long_link": "the {document} is too large for a link ({length:,} characters; limit {most:,}); share the file instead",
    # schedules in CSV files of torch.distributed.pipelining
    "csv_malformed": "the file is not a CSV: {reason}",
    "csv_size": "the file has about {cells:,} cells, but at most {most:,} can be read; use fewer microbatches",
    "csv_empty": "the file is empty; give every rank a row such as 0F0,0B0",
    "csv_gap": (
        "{cell} names {part} {number}, but no cell names {part} {missing}; number every {part} from 0 without gaps"
    ),
    "csv_idle_row": "row {row} computes nothing, and every row is a rank; add actions to it or remove it",
    "csv_table_size": (
        "{stages} stages x {microbatches} microbatches are too many: their product can be up to {most:,}"
    ),
    "csv_stray": (
        "{action} is in row {row}, and other actions of stage {stage} are in row {home}; "
        "a stage runs forward and backward of a microbatch in one row"
    ),
    # remarks
    "csv_meshes_replaced": "{meshes} {meshes:plural|mesh|meshes} of one device each replaced the {before} of the design",
    "csv_layers_added": "the model now has {layers} layers instead of {before}, one per stage",
    "csv_without_reduction": (
        "{stages:plural|stage|stages} {stages:list} had no REDUCE_GRAD: torch would not divide their gradients by the "
        "number of microbatches. Here they are divided; export the design for a file with REDUCE_GRAD"
    ),
    "csv_moved_reductions": (
        "the reductions {actions:list} were dropped; here gradients are reduced directly after the last backward of their "
        "stage"
    ),
    "csv_unused_gathers": (
        "UNSHARD and RESHARD, which hold up to {stages} {stages:plural|stage|stages} of a rank unsharded, were dropped; "
        "they need training.sharding = parameters"
    ),
    "csv_other_gathers": (
        "UNSHARD and RESHARD were dropped; here they are placed by training.unsharded_stages = {stages}, as many as in "
        "the file"
    ),
    "csv_empty_cells": "empty cells such as {cell} were dropped, because torch refuses them in a file with messages",
    "csv_replicas": "stage {stage} is in rows {rows:list}, so it has replicas; torch itself would refuse the file",
    # exports
    "empty_timeline": "there is nothing to draw: the timeline has no spans",
    "empty_window": "the window {start:g} to {end:g} is empty; its end must be greater than its start",
    "too_many_blocks_for_svg": (
        "{blocks:,} blocks are too many for an SVG picture (at most {maximum:,}); draw a shorter window, or a PNG"
    ),
    "torchtitan_model": (
        "torchtitan supports only models of identical transformer layers without skip connections; set the model's kind to "
        "gpt or bert to export it"
    ),
    "torchtitan_placement": (
        "torchtitan derives the stage placement from the schedule name, and no schedule has this placement ({places}); it "
        "supports looped placement (1f1b, interleaved-1f1b) and a single V (hanayo with one wave, zb-v, dualpipe-v). Use "
        "one of these, or export torch-csv, which contains the placement"
    ),
    "unequal_meshes_for_torch": "{tool} needs equal meshes, but {meshes} differ; use the same axes on all meshes",
    "replicas_for_torch": (
        "torch's schedule CSV supports one rank per stage, and this design has {replicas} replicas of every stage; choose "
        "a schedule without replicas (one wave of hanayo instead of Chimera, or dualpipe-v instead of dualpipe) to export it"
    ),
    "skips_for_torch": (
        "torch's pipelining sends the output of a stage to the next one only, and here tensors skip from stage {source} "
        "to stage {target}; use two stages, or a model without skip connections, to export it"
    ),
    "loss_order_for_torch": (
        "torch numbers losses in the order in which the last stage runs its forwards, and rank {rank} runs {late} before "
        "{early}: a backward would start from the loss of another microbatch; let stage {stage} run its forwards in "
        "ascending order (backwards may have any order)"
    ),
}
