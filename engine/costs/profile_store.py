"""Storage of calibration profiles: file names, reading, writing and listing in the folder ``profiles``."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping
from functools import lru_cache
from operator import attrgetter
from pathlib import Path
from typing import Any

from meshwave.engine.costs.profile import Machine, Profile, load_profile
from meshwave.engine.errors import closest_word
from meshwave.engine.files import check_writable, data_folder, write_whole
from meshwave.engine.findings import Refusal
from meshwave.engine.machine import processor_name


def save_profile(profile: Profile, path: Path | str) -> None:
    """Write a profile atomically: after a crash, the file is either the old or the new one."""
    write_whole(path, profile.to_json().encode())


DEFAULT_PROFILE = "this-machine.json"
"""File name of a profile that is stored without a name."""
KEPT_NAME = re.compile(r"[^/\\\x00.][^/\\\x00]{0,199}")


def profiles_folder() -> Path:
    """Return the folder of stored profiles."""
    return data_folder() / "profiles"


def list_profiles() -> list[str]:
    """Return the sorted names of the stored profiles."""
    return sorted(path.name for path in profiles_folder().glob("[!.]*.json"))


def load_stored_profile(name: str) -> Profile:
    """Load a stored profile; it is cached until its file changes.

    Raises:
        InputError: no profile has this name, or its file is invalid.
    """
    path = profiles_folder() / profile_file_name(name)
    try:
        found = path.stat()
    except OSError:
        known = list_profiles()
        params = {"name": name, "known": known, "suggestion": closest_word(name, known)}
        raise Refusal("missing_profile", params) from None
    return _read_profile(path, found.st_mtime_ns, found.st_ino)


@lru_cache(maxsize=16)
def _read_profile(path: Path, changed_ns: int, file: int) -> Profile:
    return load_profile(path)


def describe_other_machine(profile: Profile) -> str:
    """Return a sentence if a profile was measured on another machine; empty if not, or if the machine is unknown."""
    machine = profile.machine
    its, mine = (machine.cores, machine.processor), (os.cpu_count(), processor_name())
    if machine.cores is None or not machine.processor or its == mine:
        return ""
    there, here = (f"{cores} core{'s' * (cores != 1)} of {name}" for cores, name in (its, mine))
    return f"measured on another machine: {there}, and this one has {here}"


def store_profile(profile: Profile, name: str) -> Path:
    """Store a profile under a name that designs can refer to, replacing a profile of the same name.

    Raises:
        InputError: the name is not a valid file name, or the file cannot be written.
    """
    path = _profile_path(name)
    save_profile(profile, path)
    return path


SECTION_KEYS: Mapping[str, tuple[str, ...]] = {
    "matrix": ("precision",),
    "collectives": ("collective", "group", "size", "mp", "esp"),
    "links": ("pair",),
    "contention": ("pair",),
    "blocks": ("kind", "precision"),
    "optimizer": ("optimizer", "precision", "clipped"),
    "memory": ("kind", "precision"),
}
"""Fields that identify a measurement in each section of a profile."""
SETUP = ("ranks", "ranks_per_node", "backend", "network", "cores", "processor", "software", "run")
"""Fields of a machine that must be equal to combine measurements."""


def check_can_extend(name: str, machine: Machine) -> None:
    """Check that measurements of a machine can be added to the profile of a name, if one is stored.

    Raises:
        InputError: the stored profile was measured with another machine, software or number of processes, or is invalid.
    """
    name = profile_file_name(name)
    if name not in list_profiles():
        return
    before = load_stored_profile(name).machine
    fields = [field for field in SETUP if getattr(before, field) != getattr(machine, field)]
    if before.device and machine.device and before.device != machine.device:
        fields.append("device")
    if fields:
        raise Refusal("profile_of_another_setup", {"name": name, "fields": fields})


def extend_stored_profile(name: str, profile: Profile) -> Profile:
    """Return the stored profile of a name with measurements added or replaced; just these if none is stored.

    Raises:
        InputError: see :func:`check_can_extend`.
    """
    check_can_extend(name, profile.machine)
    if profile_file_name(name) not in list_profiles():
        return profile
    before = load_stored_profile(name)
    sections = {section: _merge_section(section, before, profile) for section in SECTION_KEYS}
    device = profile.machine.device or before.machine.device
    machine = profile.machine.model_copy(update={"device": device})
    return before.model_copy(update={**sections, "machine": machine, "rates": profile.rates or before.rates})


def _merge_section(section: str, before: Profile, profile: Profile) -> tuple[Any, ...]:
    key = attrgetter(*SECTION_KEYS[section])
    return tuple({key(each): each for found in (before, profile) for each in getattr(found, section)}.values())


def check_can_store(name: str = DEFAULT_PROFILE) -> None:
    """Check that a profile can be stored under a name, before measuring it.

    Raises:
        InputError: the name is not a valid file name, or the file cannot be written.
    """
    check_writable(_profile_path(name))


def _profile_path(name: str) -> Path:
    path = profiles_folder() / profile_file_name(name)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise Refusal("unwritable_profiles", {"folder": str(path.parent), "reason": error.strerror}) from None
    return path


def write_spare_profile(profile: Profile) -> str:
    """Write a profile to a temporary file, because it cannot be stored; return the path, empty if that fails too."""
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


def profile_file_name(name: str) -> str:
    """Return the file name of a profile; ``.json`` is added if it is missing.

    Raises:
        InputError: the name is not a plain file name.
    """
    if not KEPT_NAME.fullmatch(name):
        raise Refusal("invalid_profile_name", {"name": name})
    return name if name.endswith(".json") else f"{name}.json"
