"""Reading of the command-line arguments in a launch script, without running the script."""

from __future__ import annotations

import re
import shlex
from collections import deque
from collections.abc import Container, Iterator

from meshwave.engine import messages
from meshwave.engine.findings import DesignError, Problem

Arguments = dict[str, tuple[str, ...]]
"""Values of each argument by its name, such as ``--num-layers``; a flag has no values."""

LONGEST_SCRIPT = 1_000_000  # characters
LONGEST_VALUE = 10_000  # characters, so that variables that repeat each other stay short
END = ";"  # word that marks the end of a line
COMMENT = re.compile(r"(?m)(^|\s)#.*$")
ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)\+?=(.*)", re.DOTALL)
VARIABLE = re.compile(r"\$\{(\w+)(?::?-([^}]*))?\}|\$(\w+)")
CONDITION = re.compile(r"(?m)^\s*(if|case)\b")


def has_conditions(text: str) -> bool:
    """Return True if a script has conditions, all branches of which are read."""
    return CONDITION.search(text) is not None


def read_arguments(text: str, flags: Container[str], values: Container[str]) -> Arguments:
    """Return the arguments in a script, or in a list with one argument per line; a later value replaces an earlier one.

    Variables that the script sets are replaced by their values. A value can follow on the next line.

    Args:
        text: the script.
        flags: names of the arguments without a value.
        values: names of the arguments with exactly one value; other arguments take the rest of their line.

    Raises:
        DesignError: a quotation in the script has no end, or the script is too long.
    """
    if len(text) > LONGEST_SCRIPT:
        raise DesignError([Problem("", "long_script", {"characters": len(text), "most": LONGEST_SCRIPT})])
    variables: dict[str, str] = {}
    words = deque(_split(text))
    found: Arguments = {}
    while words:
        word = words.popleft()
        if assignment := ASSIGNMENT.fullmatch(word):
            name, value = assignment.groups()
            if value.startswith("(") or "--" in value:
                words.extendleft(reversed([*value.removeprefix("(").split(), END]))
            else:
                variables[name] = _expand(value, variables)
        elif word.startswith("--") and any(map(str.isspace, word)):
            words.extendleft(reversed([*word.split(), END]))
        elif word.startswith("--") and len(word) > 2:
            name, equals, value = word.partition("=")
            name = name.replace("_", "-")
            taken = [value] if equals else [] if name in flags else list(_take(words, name in values))
            found[name] = tuple(_expand(value, variables) for value in taken)
    return found


def _split(text: str) -> Iterator[str]:
    """Yield the words of a script, with an end mark for every end of a line."""
    lines = COMMENT.sub("", text).replace("\\\n", "\n").replace("\n", f" {END} ")
    lexer = shlex.shlex(lines, posix=True, punctuation_chars=False)
    lexer.whitespace_split, lexer.commenters = True, ""
    try:
        yield from lexer
    except ValueError:
        raise DesignError([Problem("", "open_quotation")]) from None


def _take(words: deque[str], is_single: bool) -> Iterator[str]:
    """Remove and yield the values at the start of the words."""
    while is_single and words and words[0] == END:
        words.popleft()
    while words and words[0] != END and not re.match(r"--\w", words[0]):
        word = words.popleft()
        value = word.removesuffix(END)
        if value.count(")") > value.count("("):  # the end of a list of the shell
            value = value.removesuffix(")")
            words.appendleft(END)
        if value:
            yield value
        if is_single or value != word:
            return


def _expand(value: str, variables: dict[str, str]) -> str:
    """Return a value with the variables that the script sets; others keep their dollar sign."""

    def replace(match: re.Match[str]) -> str:
        default = None if match[2] is None else match[2].strip("\"'")
        return variables.get(match[1] or match[3], match[0] if default is None else default)

    expanded = VARIABLE.sub(replace, value.strip("\"'"))
    return expanded if len(expanded) <= LONGEST_VALUE else value


messages.add_messages(
    open_quotation="a quotation in the script has no end; close it, or give a file with one argument per line",
    long_script="the script has {characters:,} characters (limit {most:,}); give a file with the arguments only",
)
