"""Messages about schedules in CSV files of torch.distributed.pipelining."""

from __future__ import annotations

from meshwave.engine.messages import Message

MESSAGES: dict[str, Message] = {
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
}
