"""Messages about files, and about members of registries."""

from __future__ import annotations

from meshwave.engine.messages import Message

MESSAGES: dict[str, Message] = {
    "unreadable_file": "cannot read {path}: {reason}",
    "unwritable_file": "cannot write {path}: {reason}",
    "unknown_home": (
        "the home folder in {path} is unknown, because HOME is not set or the system does not know the user; set HOME, or name "
        "the folder without ~ (for designs and runs, in MESHWAVE_HOME)"
    ),
    "file_too_large": "{path} is too large for a {kind} (at most {most_mb} MB); check that this is the right file",
    "unknown_design": "cannot read {name}: no file and no example has this name. {hint}",
    "unknown_member": "there is no {kind} called {name!r}. {known:hint}",
    "member_not_imported": (
        "the {kind} {name!r} of the package {package} cannot be imported: {error}; update or uninstall it"
    ),
}
