"""Event files of TensorBoard, read back by a parser that shares no code with what writes them."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from meshwave.engine.cli import main as cli
from meshwave.engine.runs import Record
from meshwave.engine.runs.tensorboard import checksummed_record, crc32c, event_contents

ROWS = [
    (10.5, {"step": 0, "loss": 2.5, "grad_norm": 0.5, "seconds": 1.5, "tokens_per_s": 100.0}),
    (12.0, {"step": 299, "loss": None, "eval_loss": 1.25, "seconds": 1.5, "tokens_per_s": 1e9}),
]


def bitwise_crc(content: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in content:
        for bit in range(8):
            feedback = (crc ^ (byte >> bit)) & 1
            crc = (crc >> 1) ^ (0x82F63B78 * feedback)
    return crc ^ 0xFFFFFFFF


def read_records(content: bytes) -> Iterator[bytes]:
    """Check both checksums of every record, and yield its content."""
    while content:
        header, sums = content[:8], []
        (length,) = struct.unpack("<Q", header)
        for part, at in ((header, 8), (content[12 : 12 + length], 12 + length)):
            (stored,) = struct.unpack("<I", content[at : at + 4])
            unmasked = (stored - 0xA282EAD8) % 2**32
            sums.append(((unmasked >> 17) | (unmasked << 15)) % 2**32 == bitwise_crc(part))
        assert all(sums)
        yield content[12 : 12 + length]
        content = content[16 + length :]


def read_message(content: bytes) -> dict[int, list[Any]]:
    """Return the values of the fields of a protocol buffer by their numbers."""
    found: dict[int, list[Any]] = {}

    def varint() -> int:
        nonlocal content
        value = shift = 0
        while True:
            byte, content = content[0], content[1:]
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while content:
        number, wire = divmod(varint(), 8)
        if wire == 0:
            value: Any = varint()
        else:
            size = varint() if wire == 2 else {1: 8, 5: 4}[wire]
            value, content = content[:size], content[size:]
            value = value if wire == 2 else struct.unpack({1: "<d", 5: "<f"}[wire], value)[0]
        found.setdefault(number, []).append(value)
    return found


def test_the_checksum_is_that_of_the_standard() -> None:
    assert crc32c(b"123456789") == bitwise_crc(b"123456789") == 0xE3069283  # RFC 3720 and its successors


def test_event_files_hold_the_curves_of_a_run() -> None:
    content = b"".join(map(checksummed_record, event_contents(10.0, ROWS)))

    first, *events = map(read_message, read_records(content))

    assert (first[1], first[3]) == ([10.0], [b"brain.Event:2"])
    assert [(event[1][0], event[2][0]) for event in events] == [(10.5, 1), (12.0, 300)]
    values = [
        {
            tag[0].decode(): value[0]
            for tag, value in (read_message(each).values() for each in read_message(event[5][0])[1])
        }
        for event in events
    ]
    assert values[0] == {"loss/training": 2.5, "gradient norm": 0.5, "step time (s)": 1.5, "tokens per second": 100.0}
    assert set(values[1]) == {"loss/held-out", "step time (s)", "tokens per second"}
    assert values[1]["loss/held-out"] == 1.25 and math.isclose(values[1]["tokens per second"], 1e9, rel_tol=1e-6)


def test_a_damaged_file_is_noticed() -> None:
    content = bytearray(b"".join(map(checksummed_record, event_contents(10.0, ROWS))))
    content[40] ^= 1

    with pytest.raises(AssertionError):
        list(read_records(bytes(content)))


def test_a_run_is_exported_as_an_event_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MESHWAVE_HOME", str(tmp_path))
    with closing(Record()) as record:
        options: dict[str, Any] = {"launcher": "local", "handle": {}, "digest": "0", "processes": 1, "steps": 2}
        entry, _ = record.submit(name="waves", limit=1, **options)
        record.folder(entry.id).mkdir(parents=True)
        assert cli.main(["runs", "export", "--to", "tensorboard", "--out", str(tmp_path / "logs")]) == 2
        assert "has no metrics yet" in capsys.readouterr().err
        lines = [json.dumps(row) + "\n" for _, row in ROWS]
        (record.folder(entry.id) / "metrics.jsonl").write_text("".join(lines))

        assert cli.main(["runs", "export", "--to", "tensorboard", "--out", str(tmp_path / "logs"), "--json"]) == 0

    path = Path(json.loads(capsys.readouterr().out)["file"])
    assert path.parent == tmp_path / "logs" and ".tfevents." in path.name
    assert len(list(read_records(path.read_bytes()))) == 1 + len(ROWS)
