"""Messages of the page about its computations."""

from __future__ import annotations

from meshwave.engine.messages import Message

MESSAGES: dict[str, Message] = {
    "computing": "the step is being computed; the previous one is shown meanwhile",
    "stopped": "the computation was stopped; compute again, undo, or change the design",
    "computation_failed": "the computation failed: {reason}; compute again, undo, or change the design",
    "large_upload": (
        "the file has {size:quantity|B}; the page opens files of up to {maximum:quantity|B}; use the command line for "
        "larger files"
    ),
    "unknown_design_id": "{design!r} is not the ID of a design",
    "deleted_for_good": "the design can no longer be restored",
    "unwritable_history": "the history of the design cannot be written: {reason}",
    "not_a_site": "{url!r} is not an address of the page; write one such as https://host/proxy/5006/",
    "site_without_tls": "{url!r} has no TLS, which other machines need; write https, or an address of this machine",
    "unwritable_library": "cannot save designs in {folder}: {reason}; set MESHWAVE_HOME to a writable folder",
    "too_many_pins": "{count} designs are pinned ({names}); unpin one to pin another",
    "not_computed": "cannot {purpose}: the step has not been computed: {reason}",
    "invalid_design": "cannot {purpose}: the design has errors: {reason}",
    "already_calibrating": "this machine is being calibrated; wait until that is done, or stop it",
    "changed_problem": "this problem has changed; check the list of problems again",
    "page_limit": (
        "{subject} of {computations:,} computations is too large for the page, which computes up to {limit:,}; "
        "use fewer microbatches or stages, or the command line: meshwave simulate"
    ),
}
