"""Import formats, and the detection of the format of a file."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar, NamedTuple

from meshwave.engine.document import Design
from meshwave.engine.files import read_whole
from meshwave.engine.findings import DesignError, Problem, Refusal
from meshwave.engine.registry import Registry

LARGEST_FILE_BYTES = 64_000_000
DESIGN_SUFFIX = ".json"
TOO_FEW_DEVICES = "too_few_import_devices"
"""Code of the problem that the open design has fewer devices than the file needs; the page then opens a new design."""


class Imported(NamedTuple):
    """Design that was read from a file, and remarks about it."""

    design: Design
    notes: tuple[Problem, ...]


class Import(ABC):
    """File format of another tool that Meshwave imports. A member is one file in this folder."""

    title: ClassVar[str]
    note: ClassVar[str]  # tool that writes the format
    suffixes: ClassVar[tuple[str, ...]]  # suffixes of its files, in lower case

    @staticmethod
    def recognizes(text: str) -> bool:
        """Return True if the content of a file looks like this format; called if formats share a suffix."""
        return True

    @staticmethod
    @abstractmethod
    def read(text: str, name: str, into: Design | None = None, *, draft: bool = False) -> Imported:
        """Return the design in a file.

        Args:
            text: the content of the file.
            name: the name of the new design if ``into`` is None.
            into: the design that provides the parts that the file does not contain; None for a new design.
            draft: True if the parts of the design may be inconsistent.

        Raises:
            DesignError: the file is invalid, or does not fit the design; contains the problems.
        """


def check_device_count(design: Design, needed: int) -> None:
    """Check that the cluster of a design has the devices that a file needs.

    Raises:
        DesignError: the cluster has fewer devices.
    """
    if needed > design.cluster.devices:
        params = {"needed": needed, "name": design.name, "devices": design.cluster.devices}
        raise DesignError([Problem("", TOO_FEW_DEVICES, params)])


imports: Registry[type[Import]] = Registry("import format", "meshwave.engine.imports")


def is_import(file: str, text: str = "") -> bool:
    """Return True if a file is in an import format, by its suffix, and also by its content if designs have the same suffix."""
    formats = _formats_of(file)
    return any(not file.lower().endswith(DESIGN_SUFFIX) or imports[name].recognizes(text) for name in formats)


def find_format(file: str, text: str) -> str:
    """Return the name of the import format of a file, by its suffix, and by its content if formats share the suffix.

    Raises:
        Refusal: no format matches, or several do.
    """
    named = _formats_of(file)
    found = named if len(named) < 2 else [name for name in named if imports[name].recognizes(text)]
    if len(found) != 1:
        code = "ambiguous_import" if found else "unknown_import"
        raise Refusal(code, {"file": Path(file).name, "formats": found or list(imports)})
    return found[0]


def _formats_of(file: str) -> list[str]:
    return [name for name, each in imports.items() if file.lower().endswith(each.suffixes)]


def split_name(path: Path | str) -> tuple[str, str]:
    """Return the file and the name in ``FILE:NAME``; the name is empty if there is none."""
    file, colon, name = str(path).rpartition(":")
    return (file, name) if colon and name.isidentifier() and not os.path.exists(path) else (str(path), "")


def load_import(path: Path | str, into: Design | None = None, form: str = "") -> Imported:
    """Read a design from a file of another tool; ``form`` is its format, "" to detect it.

    ``FILE:NAME`` names one of several designs in a file.

    Raises:
        InputError: the file cannot be read, or its format is unknown.
        DesignError: the file contains no valid design, or one that does not fit ``into``.
    """
    file, part = split_name(path)
    content = read_whole(file, "schedule", LARGEST_FILE_BYTES)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise Refusal("import_not_text", {"file": file}) from None
    return imports[form or find_format(file, text)].read(text, part or Path(file).stem, into)
