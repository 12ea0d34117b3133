"""Messages of the page about its computations, its lessons and the people of a server."""

from __future__ import annotations

from meshwave.engine.messages import Message


def _file_not_opened(source: str, reason: str, others: int) -> str:
    return f"{source} was not opened: {reason}" + (f" (and {others} more)" if others else "")


def _answer_not_a_number(unit: str) -> str:
    return f"type a number{f' in {unit}' if unit else ''}, such as 12.5"


ACTIONS = {
    "launch": "Launching training",
    "dry_run": "Launching a dry run",
    "save": "Saving designs",
    "calibrate": "Calibrating the machine",
    "store_text": "Storing a training text",
    "store_profile": "Storing a calibration profile",
    "add_trace_run": "Opening a trace as a run",
}


def _role_required(action: str, needed: str, role: str) -> str:
    return f"{ACTIONS[action]} needs the role {needed}; you are signed in as {role}"


MESSAGES: dict[str, Message] = {
    "computing": "the step is being computed; the previous one is shown meanwhile",
    "stopped": "the computation was stopped; compute again, undo, or change the design",
    "computation_failed": "the computation failed: {reason}; compute again, undo, or change the design",
    "large_upload": (
        "the size of the file is {size:quantity|B}; the page opens files of up to {maximum:quantity|B}; use the command line for "
        "larger files"
    ),
    "unknown_design_id": "{design!r} is not the ID of a design",
    "unreadable_design": "this is a new design, because {path} cannot be read and stays unchanged: {reason}",
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
        "without links"
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
    # lessons
    "no_open_lesson": "no lesson is open; choose one from the list",
    "no_option_chosen": "choose one of the options",
    "answer_not_a_number": _answer_not_a_number,
    "entry_with_problems": "the open design has a problem; see the Problems tab",
    "not_a_better_score": "{score} is not better than your best score",
    "unwritable_workshop": "cannot save the workshop in {folder}: {reason}",
    "not_a_design": "{file} is not a design",
    "no_class_step": "the teacher has not chosen a step",
    "lesson_unreadable": "the file cannot be read: {reason}",
    "lesson_not_text": "the file is not text; save it as text in UTF-8",
    "lesson_too_large": "{size:,} bytes exceed the limit of {limit:,} bytes",
    "lesson_without_front_matter": "the file has no front matter; put TOML between two +++ lines at the top",
    "lesson_without_steps": "the lesson has no steps; a heading such as '## First step' starts one",
    "lesson_too_many_steps": "{count} steps are too many; the limit is {limit}",
    "lesson_second_block": "the step has {count} blocks of TOML; put all its keys into one",
    "lesson_unknown_name": "unknown {noun} {name!r}. {known:hint}",
    "lesson_design_cycle": "the design {name!r} is its own base; start from a file or an example",
    "lesson_design_source": "the design {name!r} needs exactly one of 'file', 'example' and 'base'; it has {count}",
    "lesson_design_size": "{computations:,} computations are too many for a lesson; the limit is {limit:,}",
    "lesson_placeholder": (
        "{text} is not a valid placeholder; write a design, a colon, a number and a unit, such as start: bubble_ratio %"
    ),
    "lesson_no_number": "{name} is not available for the design {design!r}: unit costs give neither seconds nor MFU; use roofline costs",
    "lesson_choice_answer": "a choice needs either 'right', or 'number' and 'best' with a design for each option",
    "lesson_choice_tie": "the options are equal; add an option with same = true",
    "lesson_condition_value": "a condition needs either 'value' or 'of'",
    "lesson_hints": "the step has {count} hints; use at most {limit}, each with more help than the previous one",
    "lesson_right_refused": "the right answer, {answer}, is refused",
    "lesson_wrong_accepted": "the wrong answer, {answer}, is accepted",
    "lesson_start_passes": "the design {design!r} that the step starts from already passes",
    "lesson_task_without_start": "a task needs a design to start from",
    "lesson_solution_fails": "the solution {design!r} does not pass: {conditions}",
    "workshop_condition_of": "a condition of a challenge compares with a 'value'; 'of' is for lessons",
    "workshop_wrong_code": "this is not the code of the workshop; the teacher's screen shows it",
    "workshop_name_taken": "the name {name!r} is already taken; choose another one, or ask the teacher to remove it",
    "workshop_full": "the workshop is full: {people} people have joined",
    "workshop_name": "type a name of 1 to {longest} characters",
    "workshop_fixed_key": "{key!r} is fixed in this challenge; restore its value, or open the initial design again",
    "workshop_condition_unmet": "the design does not meet this condition: {condition}; its value is {value}",
    "workshop_no_score": "{number!r} is not available for this design; choose a cost model in seconds",
    "workshop_not_begun": "the workshop {name!r} has no results yet; serve it first",
    "workshop_is_served": "a server of the workshop {name!r} is running; stop it first",
    "workshop_unknown_person": "this person has left the workshop",
    # people of a server
    "session_is_over": "this page is no longer open",
    "run_is_over": "this run has ended",
    "job_is_over": "this computation has ended",
    "wrong_token": "wrong name or token; an administrator of this server can create a new token",
    "sign_in_at_proxy": "the reverse proxy in front of this server did not identify you; sign in there",
    "sign_in_changed": "the sign-in method in the people file has changed; restart the server",
    "unlisted_person": "{name} has no account on this server; an administrator can add this name",
    "unverified_email": "the provider has not verified that {name} is your address; verify it there first",
    "role_required": _role_required,
    "launch_target": "this server does not permit launches on {target!r}; choose another launch target",
    "launch_processes": "the run has {processes} processes; one person may launch at most {most} here",
    "launch_runs": "you already have {runs} queued or active runs; wait until one of them ends, or cancel it",
    "launch_disk": (
        "your runs use {used_bytes:quantity|B} of disk space (limit: {most_bytes:quantity|B}); delete some in the Runs tab"
    ),
    "launch_total_runs": "this server has {runs} queued or active runs, which is its limit; try again later",
    "launch_total_processes": (
        "the run has {processes} processes, and the other runs on this server have {busy}; "
        "the limit of the server is {most}; try again later"
    ),
    "launch_total_disk": (
        "the runs on this server use {used_bytes:quantity|B} of disk space (limit: {most_bytes:quantity|B}); some of them must be deleted first"
    ),
    "saved_designs": "you have {designs} saved designs, which is the limit; delete some on the start page",
    "saved_designs_disk": (
        "your designs use {used_bytes:quantity|B} of disk space (limit: {most_bytes:quantity|B}); delete designs that you no longer need"
    ),
    "saved_designs_total": (
        "this server has {designs} saved designs, which is its limit; some of them must be deleted first"
    ),
    "saved_designs_total_disk": (
        "the designs on this server use {used_bytes:quantity|B} of disk space (limit: {most_bytes:quantity|B}); some of them must be deleted first"
    ),
    "other_run": "another person launched this run; you can change only your own runs",
    "proxy_address": "{address!r} is not an IP address",
    "header_login_without_proxy": (
        'login = "header" needs the keys header and proxies: the name of the header, and the addresses of the reverse '
        "proxies that set it"
    ),
    "oauth_login_without_provider": 'login = "oauth" needs the table [oauth] with the keys provider and key',
    "duplicate_person": "{name!r} is listed twice; upper and lower case are the same",
    "person_without_token": "{name!r} has no token; make one with meshwave people add",
    "person_exists": "{path} lists {name!r} already; delete that entry first to replace the token",
}
