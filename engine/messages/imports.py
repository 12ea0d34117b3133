"""Messages of the import of files of other tools."""

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
        "line {line} is invalid: the stage must be a whole number, and the other columns times from 0 to 1,000,000; a header "
        "names the columns stage, forward, and backward or input and weight"
    ),
    "incomplete_stage_costs": "stage {stage} has no {column}; give forward, input gradient and weight gradient of each stage",
    "several_files": "only traces can consist of several files; give one file",
    "ambiguous_import": "{file} may be in several formats: {formats:list}; name one with --from",
    "no_design_in_link": "the link has no design: expected #design= with a compressed document",
    "long_link": "the {document} is too large for a link ({length:,} characters; limit {most:,}); share the file instead",
}
