"""What was measured on a machine: blocks of a model, the optimizer, links, collectives, memory, or a run's actions.

``meshwave calibrate`` writes such a file and ``engine/runtime`` measures what is in it; a run becomes one
too, by its ``actions``. A design names it by its file name (``cost.profile``), and it is looked up in
``profiles`` of Meshwave's folder. Bytes are those of Meshwave everywhere: of an all-to-all the whole
buffer that a rank sends, of an all-gather what one rank contributes, of a reduce-scatter or an all-reduce
the whole buffer that goes in.
"""

from __future__ import annotations

import os
import re
import tempfile
from functools import lru_cache
from pathlib import Path

from meshwave.engine.costs.profile import Profile, load_profile
from meshwave.engine.errors import InputError, closest
from meshwave.engine.files import home, see_writable, write_whole
from meshwave.engine.findings import Refusal
from meshwave.engine.machine import processor


def save_profile(profile: Profile, path: Path | str) -> None:
    """Write a profile; a crash leaves the old file or the new one, never half of one."""
    write_whole(path, profile.to_json().encode())


# ---- those that are kept ----

USUAL = "this-machine.json"
"""What a profile is called that nobody has named."""
KEPT_NAME = re.compile(r"[^/\\\x00.][^/\\\x00]{0,199}")


def folder() -> Path:
    """Where profiles are kept."""
    return home() / "profiles"


def profiles() -> list[str]:
    """The names of those that are kept, in their order."""
    return sorted(path.name for path in folder().glob("[!.]*.json"))


def load_named(name: str) -> Profile:
    """A profile that is kept; one that was read before is read again only where its file has changed.

    Raises:
        InputError: there is none of that name, or what is in its file is no profile.
    """
    path = folder() / named(name)
    try:
        found = path.stat()
    except OSError:
        known = profiles()
        params = {"name": name, "known": known, "suggestion": closest(name, known)}
        raise Refusal("missing_profile", params) from None
    return _read(path, found.st_mtime_ns, found.st_ino)


@lru_cache(maxsize=16)
def _read(path: Path, changed_ns: int, file: int) -> Profile:
    return load_profile(path)


def elsewhere(profile: Profile) -> str:
    """That it was measured on another machine than this one, in words; empty where it was not, or where it does not say."""
    machine = profile.machine
    its, mine = (machine.cores, machine.processor), (os.cpu_count(), processor())
    if machine.cores is None or not machine.processor or its == mine:
        return ""
    there, here = (f"{cores} core{'s' * (cores != 1)} of {name}" for cores, name in (its, mine))
    return f"measured on another machine: {there}, and this one has {here}"


def keep(profile: Profile, name: str) -> Path:
    """Write a profile where designs find it by its name; one of the same name is replaced.

    Raises:
        InputError: the name cannot be a file's, or it cannot be written.
    """
    path = _place(name)
    save_profile(profile, path)
    return path


def see_keepable(name: str = USUAL) -> None:
    """See that a profile can be kept under a name, before anything is measured for it.

    Raises:
        InputError: the name cannot be a file's, or it cannot be written.
    """
    see_writable(_place(name))


def _place(name: str) -> Path:
    path = folder() / named(name)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot keep profiles in {path.parent}: {error.strerror}") from None
    return path


def put_aside(profile: Profile) -> str:
    """A temporary file with a profile that took minutes to measure and cannot be kept; empty where there is no room for
    it either."""
    path = ""
    try:
        number, path = tempfile.mkstemp(prefix="meshwave-profile-", suffix=".json")
        with os.fdopen(number, "w") as file:
            file.write(profile.to_json())
    except OSError:
        if path:
            Path(path).unlink(missing_ok=True)
        return ""
    return path


def named(name: str) -> str:
    """A file name in the folder of profiles, ``.json`` added where it lacks.

    Raises:
        InputError: it leads elsewhere.
    """
    if not KEPT_NAME.fullmatch(name):
        raise Refusal("invalid_profile_name", {"name": name})
    return name if name.endswith(".json") else f"{name}.json"
