"""Messages of the page about its computations."""

from __future__ import annotations

from meshwave.engine.messages import Message


def _file_not_opened(source: str, reason: str, others: int) -> str:
    return f"{source} was not opened: {reason}" + (f" (and {others} more)" if others else "")


MESSAGES: dict[str, Message] = {
    "computing": "the step is being computed; the previous one is shown meanwhile",
    "stopped": "the computation was stopped; compute again, undo, or change the design",
    "computation_failed": "the computation failed: {reason}; compute again, undo, or change the design",
    "large_upload": (
        "the size of the file is {size:quantity|B}; the page opens files of up to {maximum:quantity|B}; use the command line for "
        "larger files"
    ),
    "unknown_design_id": "{design!r} is not the ID of a design",
    "deleted_for_good": "the design can no longer be restored",
    "unwritable_history": "the history of the design cannot be written: {reason}",
    "not_a_site": "{url!r} is not an address of the page; write one such as https://host/proxy/5006/",
    "site_without_tls": "{url!r} does not use TLS, which other machines require; use https, or an address of this machine",
    "unwritable_library": "cannot save designs in {folder}: {reason}; set MESHWAVE_HOME to a writable folder",
    "too_many_pins": "{count} designs are pinned ({names}); unpin one to pin another",
    "not_computed": "cannot {purpose}: the step has not been computed: {reason}",
    "invalid_design": "cannot {purpose}: the design has errors: {reason}",
    "already_calibrating": "this machine is being calibrated; wait until that is done, or stop it",
    "changed_problem": "this problem has changed; check the list of problems again",
    # gestures that the page should no longer offer
    "invalid_gesture": "the page sent an invalid value of {key!r}; reload the page",
    "no_open_design": "no design is open",
    "outdated_card": "this card belongs to an earlier design; select a current one",
    "outdated_timeline": "that timeline is no longer shown",
    "outdated_action": "this mesh no longer has {action}",
    "outdated_field": "the design has changed and no longer has this field",
    "read_only_design": "this page is read-only; it shows the design and its runs, but cannot change them",
    "edits_do_not_fit": "the edit conflicts with the edits of others: {reason}",
    "edit_of_earlier_state": (
        "your edit was not applied, because {name} changed the meshes, stages or experts at the same time; repeat your edit"
    ),
    "nothing_left_to_undo": "cannot undo {label!r}: others have changed all of its values",
    "too_many_members": "{count} people have this design open, which is the maximum; wait until one of them leaves",
    "design_of_somebody_else": "only the owner of the design can share it, or end sharing",
    "unwritable_link": "the list of shared designs cannot be saved: {reason}",
    "damaged_links": (
        "designs cannot be shared: the list of shared designs, {path}, is damaged; repair the file, or rename it to start "
        "without links; then restart the server"
    ),
    "unknown_shared_design": "this link is not valid; ask the owner of the design for a new link",
    "empty_comment": "type a comment",
    "long_comment": "the comment has {length:,} characters; the limit is {limit:,}",
    "too_many_comments": "a design has at most {limit} comments; delete some that are resolved",
    "unknown_comment": "this comment was deleted",
    "foreign_comment": "{author} wrote this comment; only {author} and the owner of the design can delete it",
    "damaged_comments": (
        "the comments on this design cannot be read: {path} is damaged; repair the file, or rename it to start without "
        "comments"
    ),
    "unwritable_comments": "the comment cannot be saved: {reason}",
    "design_open_elsewhere": "this design is open in another tab; close that tab first",
    "no_versions_on_page": "versions cannot be saved on this page",
    "schedule_without_dial": "this schedule has no option for waves or chunks",
    "load_not_measured": "no completed run has measured the routing of this model; launch one to use its measured load",
    "no_better_balance": "no better balance was found; allow more replicas per device",
    "profile_without_name": "enter a name for the profile, such as {example}",
    "measured_what_if": "a measured timeline cannot be simulated with other costs; show the prediction",
    "saved_share_out_of_range": "the fraction of time saved must be between 0 and 1 (exclusive); got {share:g}",
    "file_not_opened": _file_not_opened,
    "outdated_stages": "these are the stages of the last valid design; fix the problems first",
    "outdated_search": "this result is for an earlier design; search again",
    "search_of_invalid_design": "the design has errors; fix them before searching for an order",
    # the server
    "no_free_port": "no free port was found; set one with --port",
    "unusable_port": "port {port} is in use or not allowed; omit --port to use a free one",
    "used_ports": "all ports from {first} to {last} are in use; set one with --port",
    "unreadable_certificate": "cannot read {path}",
    "certificate_without_key": "--certificate and --key are needed together",
    "unencrypted_address": (
        "serving {address} to other machines needs TLS; add --certificate and --key, or use a reverse proxy with TLS "
        "and add --url https://..."
    ),
    "address_without_people": (
        "serving {address} to other machines needs user accounts; create them with meshwave people add, and add "
        "--people FILE"
    ),
    "address_without_name": (
        "browsers cannot open the page at {address}; use a host name or an IPv4 address, or add --url with the address "
        "that browsers open"
    ),
    "too_many_compared_runs": "at most {maximum} runs can be compared; remove one first",
    "page_limit": (
        "{subject} of {computations:,} computations is too large for the page, which computes up to {limit:,}; "
        "use fewer microbatches or stages, or the command line: meshwave simulate"
    ),
}
