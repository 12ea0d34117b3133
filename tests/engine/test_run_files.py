"""Files of a run folder are read in bounded parts, and a reserved document can be written on a full disk."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from meshwave.engine.files import write_all
from meshwave.engine.run_files import (
    RESERVED_BYTES,
    Count,
    Follower,
    RunFile,
    RunFolderError,
    files_by_process,
    read_document,
    reserve_space,
    write_reserved,
)


class Row(RunFile):
    step: Count


def steps(rows: list[dict[str, int]]) -> list[int]:
    return [row["step"] for row in rows]


def test_a_growing_file_is_read_in_parts_each_line_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshwave.engine.run_files.CHUNK_BYTES", 64)
    path, follower = tmp_path / "rows.jsonl", Follower(tmp_path / "rows.jsonl", Row)
    assert follower.new_rows() == []
    path.write_text("".join(f'{{"step": {step}}}\n' for step in range(20)) + '{"st')

    first = steps(follower.new_rows())
    assert 0 < len(first) < 20
    assert not follower.is_at_end
    assert first + steps(follower.remaining_rows()) == [*range(20)]
    assert follower.is_at_end
    with path.open("a") as file:
        file.write('ep": 20}\n')
    assert steps(follower.new_rows()) == [20]


def test_a_line_longer_than_a_chunk_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshwave.engine.run_files.CHUNK_BYTES", 64)
    path = tmp_path / "rows.jsonl"
    path.write_text('{"step": 0}\n' + "x" * 500 + '{"step": 1}\n{"step": 2}\n')

    assert steps(Follower(path, Row).remaining_rows()) == [0, 2]


def test_a_document_with_reserved_space_is_written_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, sizes = tmp_path / "result.json", []
    reserve_space(path)
    assert not path.exists()

    def full(descriptor: int, content: bytes) -> None:
        """Raise like the kernel on a full disk, unless the file already has enough space."""
        sizes.append(os.fstat(descriptor).st_size)
        assert len(content) <= sizes[-1], "there is no room"
        write_all(descriptor, content)

    monkeypatch.setattr("meshwave.engine.run_files.write_all", full)
    write_reserved(path, {"state": "FAILED"})

    assert sizes == [RESERVED_BYTES]
    assert json.loads(path.read_bytes()) == {"state": "FAILED"}
    assert [file.name for file in tmp_path.iterdir()] == ["result.json"]


def test_a_damaged_document_is_reported_with_its_path_and_a_remedy(tmp_path: Path) -> None:
    path = tmp_path / "row.json"
    assert read_document(path, Row) is None
    path.write_text('{"step": "x"}')

    with pytest.raises(RunFolderError) as refused:
        read_document(path, Row)

    assert str(refused.value) == (
        f"{path} is damaged: step: input should be a valid integer; restore the file, or delete the run folder"
    )


def test_files_are_found_by_the_numbers_of_their_processes(tmp_path: Path) -> None:
    for name in ("rank-10.log", "rank-2.log", "rank-x.log", f"rank-{'9' * 50}.log", "rank-1.log.part"):
        (tmp_path / name).touch()

    assert list(files_by_process(tmp_path, "rank", ".log")) == [2, 10]
