"""Data of a run: texts, JSON lines, parquet files, tokens of nanoGPT and Megatron, and texts with a tokenizer."""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshwave.engine.cli.launch import load_for_data
from meshwave.engine.costs.packed_documents import attended_shares
from meshwave.engine.costs.padded_documents import padded_lengths
from meshwave.engine.document import parse_design
from meshwave.engine.document.problems import problems
from meshwave.engine.findings import DesignError, Refusal
from meshwave.engine.predict.prediction import predict
from meshwave.engine.runs.launchers import specify_run
from meshwave.engine.runs.launchers._specification import predict_documents
from meshwave.engine.runs.run_folder import write_bundle
from meshwave.engine.runs.training_data import check_training_data, store_data, stored_data, token_type

TEXTS = ["the cat sat", "on the mat", "the end"]
WORDS = {word: number for number, word in enumerate(["[UNK]", *sorted({w for text in TEXTS for w in text.split()})])}


def design(kind: str = "gpt", vocab: int = 300, **training: Any) -> Any:
    link = {"latency_s": 1e-5, "bandwidth": 1e9}
    device = {"peak_flops": 1e10, "memory_bytes": 4e9, "memory_bandwidth": 1e10}
    return parse_design(
        {
            "format": "meshwave/1",
            "cluster": {"nodes": 1, "devices_per_node": 1, "device": device, "intra_node": link, "inter_node": link},
            "model": {"kind": kind, "layers": 1, "hidden": 8, "heads": 2, "sequence": 4, "vocab": vocab},
            "meshes": [{"name": "A", "devices": [0], "axes": {"dp": 1, "tp": 1}}],
            "pipeline": {"schedule": "gpipe", "microbatches": 1},
            "training": {"data": "data", **training},
        }
    )


def store_and_read(source: Path, folder: Path, **training: Any) -> list[int]:
    """Return the tokens that a run trains on."""
    folder.mkdir()
    given = design(**training)
    check_training_data(given, source)
    store_data(given, source, folder)
    found = stored_data(folder)
    assert found is not None
    return np.fromfile(found, token_type(found)).tolist()  # type: ignore[no-any-return]


def write_tokenizer(path: Path) -> None:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    tokenizer = Tokenizer(WordLevel(WORDS, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(path))


def write_json_lines(path: Path) -> None:
    path.write_text("".join(json.dumps({"text": text, "id": n}) + "\n" for n, text in enumerate(TEXTS)))


def test_json_lines_are_the_bytes_of_their_texts(tmp_path: Path) -> None:
    write_json_lines(tmp_path / "data.jsonl")

    assert (
        bytes(store_and_read(tmp_path / "data.jsonl", tmp_path / "run")).decode()
        == "the cat sat\non the mat\nthe end\n"
    )


@pytest.mark.parametrize("name", ["data.jsonl", "data.txt"])
def test_a_tokenizer_makes_the_tokens_of_a_text(name: str, tmp_path: Path) -> None:
    write_tokenizer(tmp_path / "tokenizer.json")
    write_json_lines(tmp_path / "data.jsonl")
    (tmp_path / "data.txt").write_text("\n".join(TEXTS))

    found = store_and_read(tmp_path / name, tmp_path / "run", tokenizer="tokenizer.json")

    assert found == [WORDS[word] for text in TEXTS for word in text.split()]


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_a_token_ends_each_document(suffix: str, tmp_path: Path) -> None:
    write_tokenizer(tmp_path / "tokenizer.json")
    write_documents(tmp_path / f"data{suffix}")

    found = store_and_read(tmp_path / f"data{suffix}", tmp_path / "run", tokenizer="tokenizer.json", end_of_text="end")

    assert found == [token for text in TEXTS for token in [*(WORDS[word] for word in text.split()), WORDS["end"]]]


def write_documents(path: Path) -> None:
    """Write the texts as JSON lines, or as a parquet file with further columns; skip the test without pyarrow."""
    if path.suffix == ".jsonl":
        write_json_lines(path)
        return
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"id": list(range(len(TEXTS))), "text": TEXTS}), path, row_group_size=2)


def test_a_folder_holds_a_document_in_each_text_file(tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    (folder / "more").mkdir(parents=True)
    write_tokenizer(folder / "tokenizer.json")
    (folder / "a.txt").write_text("the cat\nsat\n")
    (folder / "notes.csv").write_text("mat")
    (folder / "more" / "b.md").write_text("the end")
    write_json_lines(folder / "c.jsonl")

    texts = ["the cat\nsat", *TEXTS, "the end"]
    assert bytes(store_and_read(folder, tmp_path / "run")).decode() == "".join(f"{text}\n" for text in texts)
    found = store_and_read(folder, tmp_path / "tokens", tokenizer="tokenizer.json", end_of_text="end")
    assert found == [token for text in texts for token in [*(WORDS[word] for word in text.split()), WORDS["end"]]]

    for path in (folder / "a.txt", folder / "c.jsonl", folder / "more" / "b.md"):
        path.unlink()
    with pytest.raises(Refusal, match=r"contains no files with texts"):
        store_and_read(folder, tmp_path / "empty")


def test_parquet_files_are_the_bytes_of_their_texts(tmp_path: Path) -> None:
    write_documents(tmp_path / "data.parquet")

    assert (
        bytes(store_and_read(tmp_path / "data.parquet", tmp_path / "run")).decode()
        == "the cat sat\non the mat\nthe end\n"
    )


def test_parquet_files_without_texts_are_refused(tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    (tmp_path / "damaged.parquet").write_bytes(b"PAR1")
    parquet.write_table(pyarrow.table({"content": TEXTS}), tmp_path / "other.parquet")
    parquet.write_table(pyarrow.table({"text": ["a", None]}), tmp_path / "null.parquet")

    for name, code in (
        ("damaged.parquet", "unreadable_parquet"),
        ("other.parquet", "parquet_without_text"),
        ("null.parquet", "row_without_text"),
    ):
        with pytest.raises(Refusal) as refused:
            store_and_read(tmp_path / name, tmp_path / name.partition(".")[0])
        assert refused.value.problem.code == code


def test_a_parquet_file_without_pyarrow_is_refused_with_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)

    with pytest.raises(
        Refusal, match=r"data.parquet needs the package pyarrow; install it: pip install 'meshwave\[data\]'"
    ):
        check_training_data(design(), tmp_path / "data.parquet")


def test_a_memory_map_of_nanogpt_has_16_bit_tokens(tmp_path: Path) -> None:
    np.array([1, 299, 40000], np.uint16).tofile(tmp_path / "train.bin")

    assert store_and_read(tmp_path / "train.bin", tmp_path / "run") == [1, 299, 40000]


@pytest.mark.parametrize(("code", "kind"), [(4, np.int32), (8, np.uint16)])
def test_the_index_of_megatron_says_the_type_of_the_tokens(code: int, kind: Any, tmp_path: Path) -> None:
    np.array([5, 6, 7], kind).tofile(tmp_path / "corpus.bin")
    sizes, pointers = np.array([2, 1], np.int32), np.array([0, 2 * kind().itemsize], np.int64)
    header = b"MMIDIDX\x00\x00" + struct.pack("<Q", 1) + struct.pack("<B", code) + struct.pack("<QQ", 2, 3)
    (tmp_path / "corpus.idx").write_bytes(header + sizes.tobytes() + pointers.tobytes())

    assert store_and_read(tmp_path / "corpus.bin", tmp_path / "run") == [5, 6, 7]


def test_a_copy_of_small_tokens_keeps_its_format_and_content(tmp_path: Path) -> None:
    """The file is given by a link to another name, as in the cache of Hugging Face, and changes after the launch."""
    np.array([1, 2, 3], np.uint16).tofile(tmp_path / "blob")
    (tmp_path / "train.bin").symlink_to(tmp_path / "blob")
    folder = tmp_path / "run"
    folder.mkdir()

    store_data(design(), tmp_path / "train.bin", folder)
    np.array([9], np.uint16).tofile(tmp_path / "blob")

    found = stored_data(folder)
    assert found is not None and np.fromfile(found, token_type(found)).tolist() == [1, 2, 3]


def test_a_resumed_run_stores_the_tokens_of_the_first_one(tmp_path: Path) -> None:
    np.array([1, 2, 3], np.uint16).tofile(tmp_path / "train.bin")
    store_and_read(tmp_path / "train.bin", tmp_path / "first")
    first = stored_data(tmp_path / "first")
    assert first is not None

    assert store_and_read(first, tmp_path / "second", tokenizer="tokenizer.json") == [1, 2, 3]


def test_data_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    write_tokenizer(tmp_path / "tokenizer.json")
    (tmp_path / "data.txt").write_text("the cat")
    (tmp_path / "bad.jsonl").write_text('{"text": "a"}\n{"content": "b"}\n')
    (tmp_path / "corpus.bin").write_bytes(b"\0\0")
    (tmp_path / "corpus.idx").write_bytes(b"nothing")
    (tmp_path / "broken.json").write_text("{}")
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("data.txt", {"tokenizer": "tokenizer.json", "kind": "bert"}, "is trained on bytes"),
        ("corpus.bin", {"kind": "bert"}, "is trained on bytes"),
        ("corpus.bin", {"tokenizer": "tokenizer.json"}, "holds tokens already"),
        ("corpus.bin", {}, "is not an index of Megatron tokens"),
        ("data.txt", {"tokenizer": "broken.json"}, "is not a tokenizer"),
        ("data.txt", {"tokenizer": "tokenizer.json", "vocab": 4}, "set model.vocab to 7 or more"),
        ("bad.jsonl", {}, "line 2 of bad.jsonl"),
    ]
    for number, (name, changes, told) in enumerate(cases):
        with pytest.raises(Refusal, match=told):
            store_and_read(tmp_path / name, tmp_path / f"run{number}", **changes)
    with pytest.raises(DesignError, match=r"missing\.json"):
        store_and_read(tmp_path / "data.txt", tmp_path / "run", tokenizer="missing.json")


@pytest.mark.torch
def test_an_exported_script_refuses_data_that_a_launch_would_convert(tmp_path: Path) -> None:
    from meshwave.engine.runtime.processes.script import _check_data

    for name in ("data.txt", "data.jsonl", "data.uint16"):
        (tmp_path / name).write_bytes(b"tokens")
    for name, training in (("data.jsonl", {}), ("data.txt", {"tokenizer": "tokenizer.json"})):
        with pytest.raises(Refusal, match="pass the converted data"):
            _check_data(design(**training), tmp_path / name)
    with pytest.raises(Refusal, match="is trained on bytes"):
        _check_data(design(kind="bert"), tmp_path / "data.uint16")
    for name, training in (("data.txt", {}), ("data.uint16", {"tokenizer": "tokenizer.json"})):
        _check_data(design(**training), tmp_path / name)


@pytest.mark.parametrize(
    ("training", "code"),
    [
        ({"data": None, "tokenizer": "tokenizer.json"}, "tokenizer_without_data"),
        ({"end_of_text": "end"}, "end_of_text_without_tokenizer"),
        ({"tokenizer": "tokenizer.json", "document_end": "end_of_text"}, "document_end_without_end_of_text"),
    ],
)
def test_settings_of_data_that_need_others_are_problems(training: dict[str, Any], code: str) -> None:
    with pytest.raises(DesignError) as refused:
        design(**training)

    assert [problem.code for problem in refused.value.problems] == [code]


def test_the_data_of_the_command_line_are_those_of_a_tokenizer_without_data(tmp_path: Path) -> None:
    document = design().model_dump(mode="json")
    document["training"] |= {"tokenizer": "tokenizer.json", "data": None}
    path = tmp_path / "design.json"
    path.write_text(json.dumps(document))

    assert load_for_data(path, "texts/a.jsonl").training.data == "a.jsonl"
    with pytest.raises(DesignError, match="is read as bytes"):
        load_for_data(path, None)


def test_documents_need_a_text_and_their_lengths_need_documents() -> None:
    images = json.loads((Path(__file__).parents[3] / "examples" / "21-u-net.json").read_text())
    images["training"]["document_end"] = 10

    with pytest.raises(DesignError) as refused:
        parse_design(images)
    assert [problem.code for problem in refused.value.problems] == ["documents_without_text"]
    assert [problem.code for problem in problems(design(document_lengths=[3]))] == ["unused_document_lengths"]


@pytest.mark.torch
def test_a_launch_predicts_the_documents_of_the_first_step(tmp_path: Path) -> None:
    from meshwave.engine.runtime.execution.data import TrainingBatches

    (tmp_path / "data.txt").write_text("a line\nanother and longer line\nthe end\n" * 20)
    plain = design(document_end=10, micro_batch_size=2).model_dump(mode="json")
    given = parse_design(
        {**plain, "model": {**plain["model"], "sequence": 40}, "pipeline": {"schedule": "gpipe", "microbatches": 3}}
    )

    found = predict_documents(specify_run(predict(given)), tmp_path / "data.txt")

    sizes = {"seed": 0, "microbatches": 3, "micro_batch_size": 2, "document_end": 10}
    drawn = [each.documents for each in TrainingBatches(tmp_path / "data.txt", given.model, **sizes).step(0)]
    expected = [sum(length**2 for row in rows or () for length in row) / 2 / 40**2 for rows in drawn]
    np.testing.assert_allclose(attended_shares(found.design), expected)
    assert found.drawn == given
    assert max(expected) < 1


@pytest.mark.torch
def test_a_launch_predicts_the_lengths_of_padded_documents(tmp_path: Path) -> None:
    from meshwave.engine.runtime.execution.data import Padding, TrainingBatches

    (tmp_path / "data.txt").write_text("a line\nanother and longer line\nthe end\n" * 20)
    plain = design(document_end=10, pad_documents=True, micro_batch_size=2).model_dump(mode="json")
    given = parse_design(
        {**plain, "model": {**plain["model"], "sequence": 20}, "pipeline": {"schedule": "gpipe", "microbatches": 6}}
    )

    found = predict_documents(specify_run(predict(given)), tmp_path / "data.txt")

    sizes = {"seed": 0, "microbatches": 6, "micro_batch_size": 2, "document_end": 10, "padding": Padding()}
    drawn = [each.inputs.shape[1] for each in TrainingBatches(tmp_path / "data.txt", given.model, **sizes).step(0)]
    np.testing.assert_array_equal(padded_lengths(found.design), drawn)
    assert {20, 7} >= set(drawn)


def test_a_launch_looks_up_the_token_that_ends_a_document(tmp_path: Path) -> None:
    """A run that resumes has only the converted data, in a folder with the design of the run that converted them."""
    write_tokenizer(tmp_path / "tokenizer.json")
    write_json_lines(tmp_path / "data.jsonl")
    named = design(tokenizer="tokenizer.json", end_of_text="end", document_end="end_of_text")

    found = predict_documents(specify_run(predict(named)), tmp_path / "data.jsonl")
    assert (found.design.training.document_end, found.drawn) == (WORDS["end"], named)

    bundle = write_bundle(found, tmp_path / "run", tmp_path / "data.jsonl")
    (converted,) = bundle.folder.glob("data.*")
    (tmp_path / "tokenizer.json").unlink()
    resumed = predict_documents(specify_run(predict(named)), converted)
    assert resumed.design.training.document_end == WORDS["end"]
    assert resumed.design.training.document_lengths, "the converted data are tokens, whose documents are known"


def test_a_newline_ends_the_documents_of_a_text_without_a_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "data.txt").write_text("a line\n" * 20)
    (tmp_path / "data.bin").write_bytes(bytes(100))
    spec = specify_run(predict(design(document_end="end_of_text")))

    assert predict_documents(spec, tmp_path / "data.txt").design.training.document_end == 10
    assert predict_documents(spec, None).design.training.document_end == 10
    with pytest.raises(Refusal, match="set training.document_end to the ID"):
        predict_documents(spec, tmp_path / "data.bin")


@pytest.mark.torch
def test_windows_of_tokens_are_drawn_and_checked(tmp_path: Path) -> None:
    """A step always has the same tokens, so a resumed run continues with the data of the next step."""
    from meshwave.engine.runtime.execution.data import TrainingBatches

    np.arange(200, dtype=np.uint16).tofile(tmp_path / "train.bin")

    def batches(vocab: int) -> TrainingBatches:
        return TrainingBatches(
            tmp_path / "train.bin", design(vocab=vocab).model, seed=1, microbatches=2, micro_batch_size=2
        )

    first = [batches(300).step(step) for step in range(6)]
    resumed = batches(300)
    for step in range(3, 6):
        for (inputs, targets, *_), (again, *_) in zip(first[step], resumed.step(step), strict=True):
            assert inputs.equal(again) and targets.equal(inputs + 1)
    with pytest.raises(Refusal, match="set model.vocab above all tokens"):
        [batches(20).step(step) for step in range(20)]
