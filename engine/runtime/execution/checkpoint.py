"""Checkpoints: the state of a training run on disk, from which a run with any layout of the same model can resume.

A checkpoint is a folder of torch.distributed.checkpoint, ``checkpoints/step-N`` of the run folder. If several
processes hold a copy of a part, one of them writes it, in a thread, while training continues. The folder is renamed to
this name when all parts are on disk with their checksums, so a folder of this name is complete.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import timedelta
from importlib import import_module
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from meshwave.engine.errors import RunError
from meshwave.engine.findings import RunRefusal
from meshwave.engine.run_files import write_document
from meshwave.engine.runs.checkpoints import (
    DAMAGED,
    FOLDER,
    MANIFEST,
    Checkpoint,
    complete_checkpoints,
    read_checkpoint,
    step_folder,
)
from meshwave.engine.runtime.modules.tensor_parallel import WeightShard

if TYPE_CHECKING:
    from torch.distributed.checkpoint.filesystem import FileSystemReader

WEIGHTS = "weights/"
"""Prefix of the names of weights in the training state."""
TIMEOUT = timedelta(minutes=30)
"""Longest wait of a process for the others to write their parts."""


class Elements(NamedTuple):
    """Range of consecutive elements of a flattened tensor."""

    shape: tuple[int, ...]  # shape of the whole tensor
    span: range

    def boxes(self) -> Iterator[tuple[list[int], list[int]]]:
        """Yield the offsets and sizes of boxes that together contain the elements, in order."""
        yield from _part_boxes(self.shape, self.span.start, self.span.stop)


def _part_boxes(shape: Sequence[int], first: int, last: int) -> Iterator[tuple[list[int], list[int]]]:
    """Yield the boxes that contain elements ``first`` to ``last``: parts of rows before and after whole rows."""
    if not shape:
        yield [], []
        return
    width = prod(shape[1:])
    while first < last:
        row, start = divmod(first, width)
        rows = (last - first) // width if start == 0 else 0
        if rows:
            yield [row, *[0] * len(shape[1:])], [rows, *shape[1:]]
            first += rows * width
            continue
        end = min(last - row * width, width)
        yield from (([row, *offsets], [1, *sizes]) for offsets, sizes in _part_boxes(shape[1:], start, end))
        first = row * width + end


@dataclass(frozen=True)
class Part:
    """Part of a whole tensor that this process holds; torch.distributed.checkpoint calls its methods."""

    tensor: Tensor
    shard: WeightShard | None = None  # None: the whole tensor
    elements: Elements | None = None  # of the shard that the tensor holds, if it does not hold all of it

    @property
    def whole_size(self) -> torch.Size:
        """Size of the whole tensor."""
        shape = torch.Size(self.elements.shape) if self.elements else self.tensor.shape
        return torch.Size(self.shard.whole_shape(shape)) if self.shard else shape

    def pieces(self) -> Iterator[tuple[torch.Size, Tensor]]:
        """Yield each contiguous piece of the part with its offsets in the whole tensor."""
        if self.elements is None:
            yield from self._shard_pieces([0] * self.tensor.dim(), self.tensor)
            return
        at = 0
        for offsets, sizes in self.elements.boxes():
            yield from self._shard_pieces(offsets, self.tensor[at : at + prod(sizes)].view(sizes))
            at += prod(sizes)

    def _shard_pieces(self, offsets: list[int], box: Tensor) -> Iterator[tuple[torch.Size, Tensor]]:
        """Yield the pieces of a box of the shard, with their offsets in the whole tensor."""
        if self.shard is None:
            yield torch.Size(offsets), box
            return
        dim, start = self.shard.dim, 0  # start of the piece in the shard
        held = range(offsets[dim], offsets[dim] + box.shape[dim])
        for piece in self.shard.pieces:
            first, last = max(start, held.start), min(start + len(piece), held.stop)
            if first < last:
                there = [*offsets[:dim], piece.start + first - start, *offsets[dim + 1 :]]
                yield torch.Size(there), box.narrow(dim, first - held.start, last - first)
            start += len(piece)

    def piece_at(self, offsets: torch.Size) -> Tensor:
        """Return the piece that starts at the given offsets of the whole tensor."""
        return next(piece for start, piece in self.pieces() if start == offsets)

    def set_whole(self, tensor: Tensor) -> None:
        """Copy the elements of the part from a tensor that holds all elements of the shard."""
        span = slice(None) if self.elements is None else slice(self.elements.span.start, self.elements.span.stop)
        self.tensor.view(-1).copy_(tensor.reshape(-1)[span])

    def copy_to_host(self) -> Part:
        """Return a copy in host memory that training does not change."""
        return replace(self, tensor=self.tensor.detach().to("cpu", copy=True))

    def size(self) -> torch.Size:
        """Return the size of the whole tensor, against which a loaded checkpoint is checked."""
        return self.whole_size

    def __create_chunk_list__(self) -> list[Any]:
        from torch.distributed.checkpoint.metadata import ChunkStorageMetadata

        return [ChunkStorageMetadata(offsets, piece.size()) for offsets, piece in self.pieces()]

    def __create_write_items__(self, name: str, part: Part) -> list[Any]:
        from torch.distributed.checkpoint.metadata import MetadataIndex, TensorProperties
        from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

        properties = TensorProperties.create_from_tensor(self.tensor)
        return [
            WriteItem(
                MetadataIndex(name, chunk.offsets),
                WriteItemType.SHARD,
                tensor_data=TensorWriteData(chunk, properties, self.whole_size),
            )
            for chunk in self.__create_chunk_list__()
        ]


State = Mapping[str, Part]
"""Parts of the training state that a process holds, by name."""


def import_checkpoint_modules() -> None:
    """Import torch.distributed.checkpoint, which takes a second of the interpreter's time, before the first step."""
    for name in ("default_planner", "filesystem", "state_dict_loader", "state_dict_saver"):
        import_module(f"torch.distributed.checkpoint.{name}")


class Checkpointer:
    """Writer of a run's checkpoints while training continues.

    All processes of a run create one, and call :meth:`save` after the same steps.
    """

    def __init__(self, folder: Path, about: Checkpoint, state: Callable[[], State], keep: int) -> None:
        """Prepare to write the tensors that ``state`` returns to ``folder``.

        ``about`` describes the run; only the newest ``keep`` checkpoints are kept.
        """
        self._folder, self._about, self._state, self._keep = folder, about, state, keep
        self._process, self._size = dist.get_rank(), dist.get_world_size()
        self._group = dist.new_group(
            backend="gloo", timeout=TIMEOUT
        )  # the writer thread must not share a group with training
        self._pool = ThreadPoolExecutor(1, "checkpoint")
        self._pending: Future[None] | None = None

    def save(self, steps: int) -> None:
        """Start to write the state after ``steps`` steps of training.

        Raises:
            OSError: the previous checkpoint could not be written.
        """
        self.wait()
        staged = {name: part.copy_to_host() for name, part in self._state().items()}
        self._pending = self._pool.submit(self._write, steps, staged)

    def wait(self) -> None:
        """Wait until all started checkpoints are on disk.

        Raises:
            OSError: a checkpoint could not be written.
        """
        if self._pending is not None:
            self._pending.result()
            self._pending = None

    def close(self) -> None:
        """Wait for the last checkpoint and end the writer thread."""
        try:
            self.wait()
        finally:
            self._pool.shutdown()

    def _write(self, steps: int, staged: State) -> None:
        from torch.distributed.checkpoint.filesystem import FileSystemWriter
        from torch.distributed.checkpoint.state_dict_saver import save

        target = step_folder(self._folder, steps)
        if target.exists():  # the run resumed from this checkpoint
            return
        unfinished = target.with_suffix(".tmp")
        writer = FileSystemWriter(unfinished, single_file_per_rank=True, sync_files=True, overwrite=True)
        save(dict(staged), storage_writer=writer, planner=_save_planner(), process_group=self._group)
        files = self._checksums(unfinished)
        if self._process == 0:
            write_document(unfinished / MANIFEST, self._about.step_manifest(steps, files).model_dump())
            unfinished.rename(target)
            self._remove_old()

    def _checksums(self, folder: Path) -> dict[str, str]:
        """Return the SHA-256 of each file in ``folder`` by name; all processes compute a share of them."""
        own = {path.name: file_sha256(path) for path in files_of_process(folder, self._process, self._size)}
        found: list[dict[str, str]] = [{}] * self._size
        dist.all_gather_object(found, own, group=self._group)
        return {name: value for part in found for name, value in part.items()}

    def _remove_old(self) -> None:
        complete = sorted(self._folder.glob("step-*[0-9]"))
        for folder in complete[: -self._keep]:
            shutil.rmtree(folder, ignore_errors=True)


class Loaded(NamedTuple):
    """Checkpoint that was loaded, and the damaged ones that were skipped."""

    steps: int = 0
    """Number of training steps before the checkpoint; 0 if the run has none."""
    damaged: Sequence[str] = ()
    """Names of newer checkpoints that are damaged."""


def load_newest_checkpoint(run_folder: Path, state: State) -> Loaded:
    """Load the newest intact checkpoint of a run into the parts of this process.

    Newer, damaged checkpoints are renamed to ``step-N.damaged``, so that training writes them again. All processes of a
    run call this function together.

    Raises:
        RunError: all checkpoints are damaged, or the checkpoint belongs to another model.
    """
    damaged: dict[str, str] = {}
    for folder in reversed(complete_checkpoints(run_folder)):
        name = _damaged_file(folder)
        if name is None:
            _read_parts(_open_reader(folder), state, folder)
            if dist.get_rank() == 0:
                _set_aside(damaged, run_folder)
            return Loaded(read_checkpoint(folder).steps, [*damaged])
        damaged[folder.name] = name
    if damaged:
        checkpoint, name = next(iter(damaged.items()))
        raise RunRefusal("damaged_checkpoints", {"count": len(damaged), "name": name, "checkpoint": checkpoint})
    return Loaded()


def _damaged_file(folder: Path) -> str | None:
    """Return the name of a damaged or missing file of a checkpoint, or None; all processes call this function together."""
    found: list[str | None] = [None] * dist.get_world_size()
    dist.all_gather_object(found, _damaged_file_of_share(folder))
    return next((name for name in found if name is not None), None)


def _damaged_file_of_share(folder: Path) -> str | None:
    """Return the name of a damaged or missing file among those that this process checks, or None."""
    try:
        files: Mapping[str, str] = read_checkpoint(folder).files
    except RunError:
        return MANIFEST
    own = sorted(files)[dist.get_rank() :: dist.get_world_size()]
    return next((name for name in own if not _is_intact(folder / name, files[name])), None)


def _is_intact(path: Path, sha256: str) -> bool:
    try:
        return file_sha256(path) == sha256
    except OSError:
        return False


def _set_aside(checkpoints: Iterable[str], run_folder: Path) -> None:
    """Rename damaged checkpoints."""
    for name in checkpoints:
        folder = run_folder / FOLDER / name
        aside = folder.with_suffix(DAMAGED)
        shutil.rmtree(aside, ignore_errors=True)
        folder.rename(aside)


def read_whole_state(folder: Path, is_wanted: Callable[[str], bool]) -> Iterator[tuple[str, Tensor]]:
    """Yield the name and the whole tensor of each entry of a checkpoint for which ``is_wanted`` returns True.

    A single process can call this function.

    Raises:
        RunError: the checkpoint is damaged.
    """
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    reader = _open_reader(folder)
    for name, data in reader.read_metadata().state_dict_metadata.items():
        if isinstance(data, TensorStorageMetadata) and is_wanted(name):
            part = Part(torch.empty(data.size, dtype=data.properties.dtype))
            _read_parts(reader, {name: part}, folder, alone=True)
            yield name, part.tensor


def _open_reader(folder: Path) -> FileSystemReader:
    """Return a reader of a checkpoint; its module is imported here, since that takes more time than a short run."""
    from torch.distributed.checkpoint.filesystem import FileSystemReader

    return FileSystemReader(folder)


def _read_parts(reader: FileSystemReader, state: State, folder: Path, *, alone: bool = False) -> None:
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.state_dict_loader import load as load_parts

    try:
        load_parts(dict(state), storage_reader=reader, planner=_load_planner(), no_dist=alone)
    except (Exception, CheckpointException) as error:  # CheckpointException is not an Exception
        raise RunRefusal("checkpoint_not_loaded", {"checkpoint": folder.name, "reason": str(error)}) from error


def files_of_process(folder: Path, process: int, processes: int) -> list[Path]:
    """Return the checkpoint files whose checksums process number ``process`` computes."""
    return sorted(path for path in folder.iterdir() if path.name != MANIFEST)[process::processes]


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file as hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _save_planner() -> Any:
    from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

    class Planner(DefaultSavePlanner):
        def lookup_object(self, index: Any) -> Tensor:
            part: Part = self.state_dict[index.fqn]
            return part.piece_at(index.offset)

    return Planner(flatten_state_dict=False, flatten_sharded_tensors=False)


def _load_planner() -> Any:
    from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner

    class Planner(DefaultLoadPlanner):
        def set_up_planner(self, state_dict: Any, metadata: Any = None, is_coordinator: bool = False) -> None:
            # The base class would replace values of unknown types, such as Part.
            self.state_dict = self.original_state_dict = state_dict
            self.metadata, self.is_coordinator = metadata, is_coordinator

        def lookup_tensor(self, index: Any) -> Tensor:
            part: Part = self.state_dict[index.fqn]
            return part.piece_at(index.offset).detach()

    return Planner(flatten_state_dict=False, flatten_sharded_tensors=False)
