"""Reading of documents: strict JSON and TOML, validated against a model class, with all problems reported."""

from __future__ import annotations

import json
import tomllib
from collections import Counter
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from meshwave.engine.document.validation_problems import validation_problems
from meshwave.engine.findings import DesignError, Problem
from meshwave.engine.frozen import Part

P = TypeVar("P", bound=Part)
MAX_DIGITS = 4300
"""Maximum number of digits of a number that Python can parse."""


def read_json(text: str | bytes, document: str) -> Any:
    """Parse a JSON text.

    Args:
        text: the text.
        document: the expected kind of document, for error messages.

    Raises:
        DesignError: the text is not JSON, or an object repeats a key.
    """
    try:
        return json.loads(text, object_pairs_hook=_build_object)
    except json.JSONDecodeError as error:
        params = {"line": error.lineno, "column": error.colno, "reason": error.msg}
        raise _text_error("invalid_json", params) from None
    except RecursionError:
        raise _text_error("nested_json", {"document": document}) from None
    except UnicodeDecodeError as error:
        params = {"byte": error.start + 1, "encoding": error.encoding.upper()}
        raise _text_error("wrong_encoding", params) from None
    except ValueError:  # the only remaining cause
        raise _text_error("long_number", {"digits": MAX_DIGITS}) from None


def _build_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object from its pairs; reject repeated keys, of which only one value would be read."""
    found = dict(pairs)
    if len(found) < len(pairs):
        repeated = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise _text_error("repeated_key", {"key": repeated})
    return found


def _text_error(code: str, params: Mapping[str, Any]) -> DesignError:
    return DesignError([Problem("", code, params)])


def read_part(text: str | bytes, root: type[P], document: str, parts: str) -> P:
    """Parse a document and validate it against one model class.

    Args:
        text: the JSON text.
        root: the model class.
        document: the kind of document for error messages, such as ``transfer``.
        parts: its main keys, named in the error about a document of another kind.

    Raises:
        DesignError: the document is invalid; the error lists every problem with its path.
    """
    content = read_json(text, document)
    if not isinstance(content, Mapping):
        raise _text_error("wrong_document", {"document": document, "parts": parts})
    try:
        return root.model_validate_json(json.dumps(content))
    except ValidationError as error:
        raise DesignError(validation_problems(error, content, root)) from None


def read_toml(text: str, place: str = "") -> dict[str, Any]:
    """Parse a TOML text; ``place`` is the path of its problem.

    Raises:
        DesignError: the text is not TOML, or too deeply nested to be converted to JSON.
    """
    try:
        values = tomllib.loads(text)
        json.dumps(values, default=str)
    except tomllib.TOMLDecodeError as error:
        raise DesignError([Problem(place, "invalid_toml", {"reason": str(error)})]) from None
    except RecursionError:
        raise DesignError([Problem(place, "nested_toml")]) from None
    except ValueError:  # the only remaining cause
        raise DesignError([Problem(place, "long_number", {"digits": MAX_DIGITS})]) from None
    return values


def parse_toml(toml: str, root: type[P], place: str) -> P:
    """Parse TOML as a part; the paths of its problems start with ``place``.

    Raises:
        DesignError: with the problems that were found.
    """
    values = read_toml(toml, place)
    try:
        return root.model_validate_json(json.dumps(values, default=str))
    except ValidationError as error:
        found = validation_problems(error, values, root)
        raise DesignError(
            each.replace(where=f"{place}, {each.where}" if each.where else place, fixes=()) for each in found
        ) from None
