"""Training data in a run folder: the bytes of a text, or tokens of one type. The suffix of a file tells its format.

Texts, JSON lines and parquet files are tokenized at the launch if the design names a tokenizer; the texts of JSON lines
and parquet files are documents, and so are the text files of a folder. The documents follow each other, so that a sequence can contain several of them. Files of tokens are memory maps: those
of nanoGPT (``.bin``), those of Megatron (``.bin`` with an ``.idx`` beside it), and raw ones such as ``.uint16``.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwave.engine import messages
from meshwave.engine.document import Design
from meshwave.engine.document.model import LanguageModel
from meshwave.engine.files import copy_private, link_or_copy, open_private
from meshwave.engine.findings import Refusal
from meshwave.engine.runs.training_texts import find_text, texts_folder

TEXT, JSON_LINES, PARQUET, MAP, INDEX = ".txt", ".jsonl", ".parquet", ".bin", ".idx"
TEXT_FILES = (TEXT, ".md", JSON_LINES, PARQUET)
"""Suffixes of the files that are read in a folder."""
COLUMN = "text"
"""Key of JSON lines, and column of parquet files, with the text of a document."""
TOKEN_TYPES = {f".{name}": np.dtype(name) for name in ("uint8", "uint16", "uint32", "int32", "int64")}
MEGATRON_MAGIC, MEGATRON_HEADER = b"MMIDIDX\x00\x00", struct.Struct("<9sQB")
MEGATRON_TYPES = {1: "uint8", 4: "int32", 5: "int64", 8: "uint16"}
TEXTS_AT_ONCE = 1000
"""Texts that are tokenized together."""
LARGEST_COPY_BYTES = 64_000_000
"""Maximum size, in bytes, of a file of data that is copied into the run folder.

A copy is not affected by edits. A larger file is hard-linked if the file system allows it, because a launch should not
wait for a disk.
"""


def token_type(path: Path) -> np.dtype[Any]:
    """Return the type of the tokens in a file; the tokens of a text are its bytes.

    Raises:
        Refusal: the index of a Megatron file is damaged, or of a type that is not supported.
    """
    if path.suffix == MAP:
        index = path.with_suffix(INDEX)
        return _megatron_type(index) if index.is_file() else np.dtype(np.uint16)
    return TOKEN_TYPES.get(path.suffix, np.dtype(np.uint8))


def _megatron_type(index: Path) -> np.dtype[Any]:
    with index.open("rb") as file:
        header = file.read(MEGATRON_HEADER.size)
    if len(header) == MEGATRON_HEADER.size:
        magic, version, code = MEGATRON_HEADER.unpack(header)
        if (magic, version) == (MEGATRON_MAGIC, 1) and code in MEGATRON_TYPES:
            return np.dtype(MEGATRON_TYPES[code])
    raise Refusal("unknown_token_index", {"file": str(index), "types": list(MEGATRON_TYPES.values())})


def is_tokens(path: Path) -> bool:
    """Return True if a file holds tokens rather than text."""
    return (path.suffix == MAP or path.suffix in TOKEN_TYPES) and not path.is_dir()


def has_documents(path: Path) -> bool:
    """Return True if a file or a folder holds documents, which a launch converts to one text or to tokens."""
    return path.suffix in (JSON_LINES, PARQUET) or path.is_dir()


def _files_of_texts(source: Path) -> list[Path]:
    """Return the files with texts in a folder and in its subfolders, sorted by path; ``source`` itself if it is a file."""
    if not source.is_dir():
        return [source]
    found = sorted(path for path in source.rglob("*") if path.suffix in TEXT_FILES and path.is_file())
    if not found:
        raise Refusal("no_texts_in_folder", {"folder": str(source), "suffixes": list(TEXT_FILES)})
    return found


def stored_data(folder: Path) -> Path | None:
    """Return the data in a run folder; None if the run trains on the text that comes with Meshwave."""
    return next((path for path in sorted(folder.glob("data.*")) if path.suffix == TEXT or is_tokens(path)), None)


def document_lengths(tokens: NDArray[Any], end: int) -> tuple[int, ...]:
    """Return the number of tokens of each document in consecutive tokens; each ends with the token ``end``, or at their end."""
    starts = np.flatnonzero(tokens[:-1] == end) + 1
    return tuple(np.diff(starts, prepend=0, append=len(tokens)).tolist())


def document_end_id(design: Design, data: Path | None) -> int | None:
    """Return the ID of the token that ends each document of the data; None if attention crosses their boundaries.

    Raises:
        DesignError: the tokenizer that the design names does not exist.
        Refusal: the data are tokens, and the design names no tokenizer.
    """
    training = design.training
    if training.document_end != "end_of_text":
        return training.document_end
    if data is not None and training.tokenizer is not None:
        return _end_token(design, _load_tokenizer(design, data))
    if data is not None and is_tokens(data):
        raise Refusal("unknown_document_end", {"file": data.name})
    return ord("\n")


def check_training_data(design: Design, data: Path) -> None:
    """Check that a design can train on a file or a folder.

    Raises:
        DesignError: the tokenizer that the design names does not exist.
        Refusal: the model reads bytes only, the tokenizer does not fit the data or the model, a parquet file cannot be
            read, or a folder contains no texts.
    """
    for file in _files_of_texts(data):
        if file.suffix == PARQUET:
            _open_parquet(file)
    name = design.training.tokenizer
    takes_tokens = isinstance(design.model, LanguageModel) and design.model.takes_tokens
    if (name is not None or is_tokens(data)) and not takes_tokens:
        raise Refusal("tokens_of_kind", {"kind": design.model.kind, "file": data.name})
    if name is not None and data.suffix == MAP:
        raise Refusal("tokenizer_of_tokens", {"tokenizer": name, "file": data.name})
    if name is not None and not is_tokens(data):  # a resumed run has the tokens that its tokenizer made
        _load_tokenizer(design, data)


def store_data(design: Design, source: Path, folder: Path) -> None:
    """Write the data of a design to a run folder.

    Raises:
        DesignError: the tokenizer that the design names does not exist.
        Refusal: a line is not a JSON object with a text, or the design cannot use the file.
        OSError: a file cannot be read or written.
    """
    if is_tokens(source):
        _copy_or_link(source, folder / f"data.{token_type(source).name}")
    elif design.training.tokenizer is not None:
        _store_tokens(design, source, folder)
    elif has_documents(source):
        _write_atomically(folder / f"data{TEXT}", (f"{text}\n".encode() for text in _read_texts(source)))
    else:
        _copy_or_link(source, folder / f"data{TEXT}")


def _store_tokens(design: Design, source: Path, folder: Path) -> None:
    tokenizer = _load_tokenizer(design, source)
    kind = np.dtype(np.uint16 if tokenizer.get_vocab_size() <= 1 << 16 else np.uint32)
    end = _end_token(design, tokenizer)
    ending = "\n" if has_documents(source) and end is None else ""
    last = [end] if has_documents(source) and end is not None else []
    encoded = (
        np.asarray([*found.ids, *last], kind).tobytes()
        for texts in _batch_texts(f"{text}{ending}" for text in _read_texts(source))
        for found in tokenizer.encode_batch(texts, add_special_tokens=False)
    )
    _write_atomically(folder / f"data.{kind.name}", encoded)


def _copy_or_link(source: Path, target: Path) -> None:
    source = source.resolve()
    if source.stat().st_size > LARGEST_COPY_BYTES:
        link_or_copy(source, target)
    else:
        copy_private(source, target)


def _write_atomically(path: Path, parts: Iterator[bytes]) -> None:
    temporary = path.with_suffix(".tmp")
    with open_private(temporary) as file:
        file.writelines(parts)
    temporary.replace(path)


def _batch_texts(texts: Iterator[str]) -> Iterator[list[str]]:
    while batch := list(islice(texts, TEXTS_AT_ONCE)):
        yield batch


def _end_token(design: Design, tokenizer: Any) -> int | None:
    """Return the token that ends each document; None for a newline."""
    name = design.training.end_of_text
    if name is None:
        return None
    if (token := tokenizer.token_to_id(name)) is None:
        raise Refusal("unknown_end_of_text", {"token": name, "tokenizer": design.training.tokenizer})
    return int(token)


def _read_texts(source: Path) -> Iterator[str]:
    """Yield the documents of JSON lines, of a parquet file or of a folder, or the lines of a text."""
    if source.is_dir():
        for path in _files_of_texts(source):
            yield from (
                _read_texts(path) if has_documents(path) else [path.read_text("utf-8", "replace").removesuffix("\n")]
            )
        return
    if source.suffix == PARQUET:
        yield from _parquet_texts(source)
        return
    with source.open(encoding="utf-8", errors="replace", newline="") as file:
        for number, line in enumerate(file, 1):
            yield _text_of_line(line, number, source) if source.suffix == JSON_LINES else line


def _parquet_texts(source: Path) -> Iterator[str]:
    row = 0
    with _open_parquet(source) as file:
        for batch in file.iter_batches(TEXTS_AT_ONCE, columns=[COLUMN]):
            for text in batch.column(0).to_pylist():
                row += 1
                if not isinstance(text, str):
                    raise Refusal("row_without_text", {"file": source.name, "row": row})
                yield text


def _open_parquet(source: Path) -> Any:
    """Open a parquet file, whose column of texts exists."""
    try:
        from pyarrow import ArrowException, parquet  # optional
    except ImportError:
        raise Refusal("pyarrow_missing", {"file": source.name}) from None
    try:
        file = parquet.ParquetFile(source)
    except (ArrowException, OSError) as error:
        raise Refusal("unreadable_parquet", {"file": source.name, "reason": str(error)}) from None
    if COLUMN not in file.schema_arrow.names:
        file.close()
        raise Refusal("parquet_without_text", {"file": source.name, "columns": file.schema_arrow.names})
    return file


def _text_of_line(line: str, number: int, source: Path) -> str:
    try:
        text = json.loads(line)[COLUMN]
    except (ValueError, TypeError, KeyError):
        text = None
    if not isinstance(text, str):
        raise Refusal("line_without_text", {"file": source.name, "line": number})
    return text


def _load_tokenizer(design: Design, data: Path) -> Any:
    name = design.training.tokenizer or ""
    path = find_text(name, [data, data.parent, texts_folder()])
    try:
        from tokenizers import Tokenizer  # optional
    except ImportError:
        raise Refusal("tokenizers_missing") from None
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises no other class
        raise Refusal("unreadable_tokenizer", {"file": str(path), "reason": str(error)}) from None
    size, vocab = tokenizer.get_vocab_size(), getattr(design.model, "vocab", 0)
    if size > vocab:
        raise Refusal("tokenizer_vocabulary", {"tokenizer": name, "size": size, "vocab": vocab})
    _end_token(design, tokenizer)
    return tokenizer


messages.add_messages(
    unknown_token_index="{file} is not an index of Megatron tokens of a supported type ({types:list}); preprocess the data again",
    tokens_of_kind="a model of kind {kind} is trained on bytes and cannot read tokens ({file}); use a text without a tokenizer",
    tokenizer_of_tokens="{file} holds tokens already; set training.tokenizer to null, or train on a text",
    line_without_text="line {line} of {file} is not a JSON object with a text under the key text",
    no_texts_in_folder="{folder} contains no files with texts ({suffixes:list}); name another folder, or a file",
    row_without_text="row {row} of {file} has no text in the column text",
    parquet_without_text="{file} has no column text, but {columns:list}; rename the column with the texts",
    unreadable_parquet="{file} cannot be read as parquet: {reason}",
    pyarrow_missing="{file} needs the package pyarrow; install it: pip install 'meshwave[data]'",
    unknown_document_end=(
        "{file} holds tokens, and the design names no tokenizer for training.end_of_text; set training.document_end to the ID of "
        "the token that ends each document"
    ),
    unknown_end_of_text=(
        "training.end_of_text {token:typed} is not a token of {tokenizer}; name one of its tokens, such as <|endoftext|>"
    ),
    tokenizers_missing="training.tokenizer needs the package tokenizers; install it: pip install 'meshwave[tokenizers]'",
    unreadable_tokenizer="{file} is not a tokenizer of Hugging Face: {reason}; use a file tokenizer.json",
    tokenizer_vocabulary="{tokenizer} has {size} tokens, but model.vocab is {vocab}; set model.vocab to {size} or more",
)
