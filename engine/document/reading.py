"""From text to the parts of a document, as every document of ours is read: strictly, and refused in words."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from meshwave.engine.document.validation_problems import from_validation
from meshwave.engine.findings import DesignError, Problem
from meshwave.engine.frozen import Part

P = TypeVar("P", bound=Part)


def read_json(text: str | bytes, what: str) -> Any:
    """
    Raises:
        DesignError: the text is no JSON, or says a key of an object twice.
    """
    try:
        return json.loads(text, object_pairs_hook=_without_repeats)
    except json.JSONDecodeError as error:
        message = f"line {error.lineno}, column {error.colno} is not JSON: {error.msg}"
        raise DesignError([Problem("", "json", message)]) from None
    except RecursionError:
        raise DesignError([Problem("", "json", f"the file nests its parts too deeply to be a {what}")]) from None
    except UnicodeDecodeError as error:
        message = f"the file is not JSON text: byte {error.start + 1} is not {error.encoding.upper()}; save it as UTF-8"
        raise DesignError([Problem("", "json", message)]) from None
    except ValueError:  # the only one that is left
        message = "the file has a number of more than 4300 digits; write a shorter one"
        raise DesignError([Problem("", "json", message)]) from None


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON; of a key that stands twice only one would be read, so it is refused."""
    found = dict(pairs)
    if len(found) < len(pairs):
        repeated = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise DesignError([Problem("", "key_repeated", f"the key {repeated!r} stands twice in one object; keep one")])
    return found


def read_part(text: str | bytes, root: type[P], what: str, parts: str) -> P:
    """A document whose whole is one part.

    Args:
        what: it is called, ``transfer``.
        parts: what a reader finds in one, for the refusal of something else.

    Raises:
        DesignError: with every problem of its form, each with its place.
    """
    document = read_json(text, what)
    if not isinstance(document, Mapping):
        raise DesignError([Problem("", "type", f"a {what} is a JSON object with {parts}")])
    try:
        return root.model_validate_json(json.dumps(document))
    except ValidationError as error:
        raise DesignError(from_validation(error, document, root)) from None
