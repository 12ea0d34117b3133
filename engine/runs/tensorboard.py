"""Event files of TensorBoard: the curves of a run.

An event file is a sequence of records (TFRecord): the length of the content, a checksum of these bytes, the content and
a checksum of it. A checksum is a CRC-32C, rotated and with a constant added. The content is a protocol buffer
``tensorflow.Event``, of which a few fields are written here.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any

from meshwave.engine.files import write_whole
from meshwave.engine.findings import Refusal
from meshwave.engine.runs.run import Run

POLYNOMIAL, MASK_DELTA = 0x82F63B78, 0xA282EAD8
TAGS = {
    "loss": "loss/training",
    "eval_loss": "loss/held-out",
    "grad_norm": "gradient norm",
    "seconds": "step time (s)",
    "tokens_per_s": "tokens per second",
}
"""Names of the curves by the keys of the metrics."""
VARINT, DOUBLE, BYTES, FLOAT = 0, 1, 2, 5
"""Wire types of protocol buffers."""


def write_events(run: Run, folder: Path) -> Path:
    """Write the metrics of a run as an event file, and return it.

    Raises:
        InputError: the run has no metrics, or the file cannot be written.
    """
    rows = run.metrics()
    if not rows:
        raise Refusal("no_metrics", {"run": run.id})
    start_s = run.entry.started_s or run.entry.created_s
    times = list(accumulate((row["seconds"] for row in rows), initial=start_s))[1:]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Refusal("folder_not_made", {"folder": str(folder), "reason": error.strerror}) from None
    path = folder / f"events.out.tfevents.{int(start_s)}.{run.id}"
    write_whole(path, b"".join(map(checksummed_record, event_contents(start_s, zip(times, rows, strict=True)))))
    return path


def event_contents(start_s: float, rows: Iterable[tuple[float, Mapping[str, Any]]]) -> Iterator[bytes]:
    """Yield the contents of the records: the version of the format, then the values of each row at its time."""
    yield _encode_field(1, DOUBLE, start_s) + _encode_field(3, BYTES, b"brain.Event:2")
    for time_s, row in rows:
        values = [
            _encode_field(1, BYTES, _encode_field(1, BYTES, tag.encode()) + _encode_field(2, FLOAT, float(value)))
            for key, tag in TAGS.items()
            if (value := row.get(key)) is not None
        ]
        step = _encode_field(2, VARINT, row["step"] + 1)
        yield _encode_field(1, DOUBLE, time_s) + step + _encode_field(5, BYTES, b"".join(values))


def checksummed_record(content: bytes) -> bytes:
    """Return a record with its checksums."""
    length = struct.pack("<Q", len(content))
    return length + _masked_checksum(length) + content + _masked_checksum(content)


def crc32c(content: bytes) -> int:
    """Return the CRC-32C (Castagnoli) of some bytes."""
    table, crc = _crc_table(), 0xFFFFFFFF
    for byte in content:
        crc = (crc >> 8) ^ table[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


@lru_cache(maxsize=1)
def _crc_table() -> tuple[int, ...]:
    table = range(256)
    for _ in range(8):
        table = [(crc >> 1) ^ (POLYNOMIAL if crc & 1 else 0) for crc in table]  # type: ignore[assignment]
    return tuple(table)


def _masked_checksum(content: bytes) -> bytes:
    crc = crc32c(content)
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + MASK_DELTA) & 0xFFFFFFFF)


def _encode_field(number: int, wire: int, value: Any) -> bytes:
    """Return a field of a protocol buffer."""
    key = _encode_varint(number << 3 | wire)
    if wire == VARINT:
        return key + _encode_varint(value)
    if wire == BYTES:
        return key + _encode_varint(len(value)) + bytes(value)
    return key + struct.pack("<d" if wire == DOUBLE else "<f", value)


def _encode_varint(value: int) -> bytes:
    content = bytearray()
    while value > 0x7F:
        content.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*content, value])
