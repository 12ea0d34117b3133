"""Archives of runs, read by ``meshwave runs import``."""

from __future__ import annotations

import gzip
import io
import shutil
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

from meshwave.engine.files import data_folder
from tests.fuzz.mutate import STRINGS, mutate_bytes
from tests.fuzz.oracle import Act, Ended, about_command
from tests.fuzz.target import Target
from tests.fuzz.targets.run_folders import recorded_files

KINDS = (tarfile.REGTYPE, tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE)
NAMES = ("/etc/passwd", "../outside", "..", ".", "", "20260101-000000-abcd/x", "a/b/c", *STRINGS)
HEADERS = ("path", "size", "linkpath", "GNU.sparse.size", "GNU.sparse.map", "hdrcharset")


class Archives(Target):
    """An archive is refused or becomes a normal run, and no other file is written."""

    suffix = ".tar.gz"

    def seeds(self) -> Iterator[bytes]:
        with io.BytesIO() as content:
            with tarfile.open(fileobj=content, mode="w:gz") as archive:
                for name, text in recorded_files().items():
                    if name.startswith("runs/"):
                        _add(archive, tarfile.TarInfo(name.removeprefix("runs/")), text.encode("latin-1"))
            yield content.getvalue()

    def mutate(self, chance: Random, seeds: Sequence[bytes]) -> bytes:
        made = io.BytesIO()
        with (
            tarfile.open(fileobj=io.BytesIO(chance.choice(seeds))) as archive,
            tarfile.open(fileobj=made, mode="w:") as other,
        ):
            for member in archive:
                file = archive.extractfile(member)
                data = file.read() if file else b""
                if chance.random() < 0.1:
                    data = _damage_member(chance, member, data)
                if chance.random() < 0.98:
                    _add(other, member, data)
        content = mutate_bytes(chance, made.getvalue()) if chance.random() < 0.1 else made.getvalue()
        packed = gzip.compress(content, 1)
        return mutate_bytes(chance, packed) if chance.random() < 0.05 else packed

    def calls(self, path: Path) -> Iterator[tuple[str, Act]]:
        shutil.rmtree(data_folder(), ignore_errors=True)
        ended: list[Ended] = []
        yield "runs import", lambda: about_command("runs", "import", str(path), ended=ended)
        if ended and ended[0].status == 0:
            yield "runs show", lambda: about_command("runs", "show", "--json")
            yield "runs list", lambda: about_command("runs", "list", "--json")


def _damage_member(chance: Random, member: tarfile.TarInfo, data: bytes) -> bytes:
    """Change one property of a member, and return its content, which may be damaged instead."""
    match chance.randrange(4):
        case 0:
            member.name = chance.choice((chance.choice(NAMES), f"{member.name}/../../{chance.choice(NAMES)}"))
        case 1:
            member.type, member.linkname = chance.choice(KINDS), chance.choice((member.name, *NAMES))
        case 2:
            member.pax_headers = {chance.choice(HEADERS): chance.choice((*NAMES, "9" * 30, "1,2"))}
        case 3:
            return mutate_bytes(chance, data)
    return data


def _add(archive: tarfile.TarFile, member: tarfile.TarInfo, data: bytes) -> None:
    """Add a member to an archive, without characters that no archive can contain."""
    member.name, member.linkname = _storable(member.name), _storable(member.linkname)
    member.pax_headers = {key: _storable(value) for key, value in member.pax_headers.items()}
    member.size = len(data) if member.isreg() else 0
    archive.addfile(member, io.BytesIO(data))


def _storable(text: str) -> str:
    return text.encode("utf-8", "replace").decode().replace("\0", "")


TARGET = Archives()
