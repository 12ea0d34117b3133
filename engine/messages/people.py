"""Messages about the people of a server: their file, their roles, and limits on their runs."""

from __future__ import annotations

from meshwave.engine.messages import Message

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
