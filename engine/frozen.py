"""What every part of the document has in common: frozen, and unknown keys are refused."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

from meshwave.engine.errors import printable


class Part(BaseModel):
    """A part of the document. Numbers are finite, types are exact, nothing can be changed."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


def _see_printable(text: str) -> str:
    shown = printable(text)
    if shown != text:
        raise PydanticCustomError(
            "control_character", "{text} has a control character; remove it", {"text": shown[:LONGEST_SHOWN]}
        )
    return text


LONGEST_SHOWN = 60
"""Letters of a text that are repeated where it is refused."""
Printable = AfterValidator(_see_printable)
"""Of text that people read: on a terminal, in a picture, in files of other tools."""
FileName = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^/\\\x00.][^/\\\x00]*$"), Printable]
"""The name of a file beside others of its kind, without folders."""
