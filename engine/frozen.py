"""Base class of all parts of a document: immutable, with exact types and without unknown keys."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from functools import cache
from inspect import cleandoc, getsource
from itertools import pairwise
from textwrap import dedent
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, GetJsonSchemaHandler
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, PydanticCustomError

from meshwave.engine.errors import escape_unprintable
from meshwave.engine.findings import Fix, Problem


class Part(BaseModel):
    """Base class of the parts of a document: immutable, with finite numbers and exact types."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Return the JSON Schema with the docstrings of the fields as their descriptions."""
        written = handler(schema)
        properties = handler.resolve_ref_schema(written).get("properties", {})
        for name, text in field_docstrings(cls).items():
            if name in properties:
                properties[name].setdefault("description", text)
        return written

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a copy with changed values; cached properties, which depend on the values, are computed again."""
        copied = super().model_copy(update=update, deep=deep)
        for name in copied.__dict__.keys() - type(self).model_fields.keys():
            del copied.__dict__[name]
        return copied


@cache
def field_docstrings(part: type[Part]) -> dict[str, str]:
    """Return the docstrings of the fields of a part, including inherited ones.

    Pydantic can read them too, but it would read the source of every part whenever a process imports the documents.
    """
    found: dict[str, str] = {}
    for base in reversed(part.__bases__):
        found |= field_docstrings(base) if issubclass(base, Part) else {}
    try:
        [definition] = ast.parse(dedent(getsource(part))).body
    except OSError:  # a generated class
        return found
    assert isinstance(definition, ast.ClassDef)
    for field, text in pairwise(definition.body):
        match field, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(docstring))):
                found[name] = cleandoc(docstring)
    return found


NULL_KEY = "x-null"
"""Key in the JSON Schema of a field: the meaning of null."""


def nullable(meaning: str, default: Any = None) -> Any:
    """Return a field that can be null; ``meaning`` explains null in the JSON Schema."""
    return Field(default=default, json_schema_extra={NULL_KEY: meaning})


LABELS_KEY = "x-labels"
"""Key in the JSON Schema of a value that is one of several words: the label of each word on the page."""


def option_labels(labels: dict[str, str]) -> Any:
    """Return the annotation of a ``Literal`` that gives each of its words a label."""
    return Field(json_schema_extra={LABELS_KEY: {**labels}})


def read_option_labels(field: FieldInfo) -> dict[str, str]:
    """Return the labels of the words of a field; empty if it has none."""
    extra = field.json_schema_extra
    return {**extra.get(LABELS_KEY, {})} if isinstance(extra, dict) else {}  # type: ignore[dict-item]


def label_words(text: str, labels: Mapping[Any, str]) -> str:
    """Return a description in which labels stand for the words that it explains, such as ``split:``."""
    for word, label in labels.items():
        text = re.sub(rf"(?<![\w-]){re.escape(str(word))}(?=: )", label.replace("\\", r"\\"), text)
    return text


TEXT_FORMS: dict[str, str] = {}
"""Descriptions of the texts that a pattern permits, by pattern."""


def text_form(pattern: str, form: str) -> Any:
    """Return a text field that must match ``pattern``; messages say that the value should be ``form``."""
    TEXT_FORMS[pattern] = form
    return Field(pattern=pattern)


def validation_error(
    where: str, code: str, params: Mapping[str, Any] | None = None, *fixes: Fix
) -> PydanticCustomError:
    """Return the error that a validator of a part raises for a problem; paths are relative to the part."""
    problem = Problem(where, code, params, fixes=fixes)
    return PydanticCustomError(code, "{message}", {"message": problem.message, "problem": problem})


def _check_printable(text: str) -> str:
    shown = escape_unprintable(text)
    if shown != text:
        raise validation_error("", "control_character", {"text": shown[:LONGEST_SHOWN]})
    return text


LONGEST_SHOWN = 60
"""Maximum number of characters of a refused text that its message repeats."""
Printable = AfterValidator(_check_printable)
"""Validator of text without control characters, which can be shown on terminals, in pictures and in other tools."""
FileName = Annotated[
    str,
    Field(min_length=1, max_length=200),
    text_form(r"^[^/\\\x00.][^/\\\x00]*$", "a plain file name, without folders"),
    Printable,
]
"""Name of a file without folders."""
