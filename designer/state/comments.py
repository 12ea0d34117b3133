"""Comments on a design, its meshes, blocks, runs and timeline, stored next to the document in the library."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, ValidationError

from meshwave.designer.state.library import new_id
from meshwave.engine.errors import escape_unprintable
from meshwave.engine.files import lock_file, read_whole, write_private
from meshwave.engine.findings import Refusal
from meshwave.engine.frozen import Part

LONGEST_COMMENT = 2000
"""Largest number of characters of a comment."""
MOST_COMMENTS = 200
"""Largest number of comments on a design."""
LARGEST_FILE_BYTES = 8_000_000


class Target(Part):
    """The object of a comment; by default the design as a whole."""

    kind: Literal["design", "mesh", "block", "run", "time", "area"] = "design"
    name: Annotated[str, Field(max_length=100)] = ""
    """Name of the mesh, action of the block, or ID of the run; empty for others."""
    rank: int = -1
    """Rank of the block."""
    start: Annotated[float, Field(ge=0)] = 0.0
    """Start of the area of the timeline, or the time in it."""
    end: Annotated[float, Field(ge=0)] = 0.0
    """End of the area; the start if it is a time."""
    unit: Literal["s", "units"] = "s"
    """Unit of start and end: seconds, or the unit of unit costs."""
    ranks: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(max_length=100_000)] = ()
    """Ranks of the area."""


class Comment(Part):
    """A comment of a person."""

    id: str
    target: Target
    text: Annotated[str, Field(max_length=10 * LONGEST_COMMENT)]
    author: Annotated[str, Field(max_length=400)]
    written_s: float
    is_resolved: bool = False


_COMMENTS = TypeAdapter(list[Comment])


class Comments:
    """The comments on one design, stored in a file of the design's folder in the library."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self._path, self._clock = path, clock

    def read(self) -> list[Comment]:
        """Return the comments, the oldest first.

        Raises:
            Refusal: the file cannot be read, or is damaged.
        """
        if not self._path.exists():
            return []
        try:
            return _COMMENTS.validate_json(read_whole(self._path, "comments", LARGEST_FILE_BYTES))
        except ValidationError:
            raise Refusal("damaged_comments", {"path": str(self._path)}) from None

    def add(self, target: Target, text: str, author: str) -> None:
        """Add a comment.

        Raises:
            Refusal: the text is empty or too long, the design has too many comments, or the file is damaged or cannot be written.
        """
        if len(text) > LONGEST_COMMENT:
            raise Refusal("long_comment", {"length": len(text), "limit": LONGEST_COMMENT})
        lines = [escape_unprintable(line.expandtabs(4)) for line in text.strip().splitlines()]
        if not lines:
            raise Refusal("empty_comment")
        made = Comment(id=new_id(), target=target, text="\n".join(lines), author=author, written_s=self._clock())
        with self._change() as known:
            if len(known) >= MOST_COMMENTS:
                raise Refusal("too_many_comments", {"limit": MOST_COMMENTS})
            known.append(made)

    def resolve(self, id: str, is_resolved: bool) -> None:
        """Mark a comment as resolved, or as open again.

        Raises:
            Refusal: there is no such comment, or the file is damaged or cannot be written.
        """
        with self._change() as known:
            index = _index(known, id)
            known[index] = known[index].model_copy(update={"is_resolved": is_resolved})

    def delete(self, id: str) -> None:
        """Delete a comment.

        Raises:
            Refusal: there is no such comment, or the file is damaged or cannot be written.
        """
        with self._change() as known:
            del known[_index(known, id)]

    def find(self, id: str) -> Comment:
        """Return a comment.

        Raises:
            Refusal: the comment does not exist, for example because somebody has deleted it, or the file is damaged.
        """
        known = self.read()
        return known[_index(known, id)]

    @contextmanager
    def _change(self) -> Iterator[list[Comment]]:
        """Yield the comments for a change, which is then written; other servers on the same folder wait meanwhile."""
        try:
            with lock_file(self._path):
                yield (comments := self.read())
                write_private(self._path, json.dumps([each.model_dump(mode="json") for each in comments]))
        except OSError as error:
            raise Refusal("unwritable_comments", {"reason": error.strerror}) from None


def _index(comments: list[Comment], id: str) -> int:
    found = next((index for index, each in enumerate(comments) if each.id == id), None)
    if found is None:
        raise Refusal("unknown_comment")
    return found
