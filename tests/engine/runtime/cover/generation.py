"""Generate the pairwise cover of training: ``python -m tests.engine.runtime.cover.generation``.

A covering array of strength 2: each pair of values of two axes is in a case, or no case with it is supported. The checks
of the product decide what is supported; the cover records the code of the problem that refuses a pair.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import combinations
from pathlib import Path

from meshwave.engine.document import parse_design
from meshwave.engine.document.unsupported import run_problems
from meshwave.engine.findings import DesignError
from tests.engine.runtime.cover.axes import (
    AXES,
    COMPANIONS,
    Case,
    broken_rule,
    complete,
    document_of,
    pairs_of,
    shorten_case,
)

FILE = Path(__file__).with_name("cover.json")
Pair = tuple[tuple[str, str], tuple[str, str]]
TRIES = 1_000
"""Number of random cases that are tried for a pair."""


@cache
def _verdict(items: frozenset[tuple[str, str]]) -> str | None:
    case = complete(dict(items))
    if rule := broken_rule(case):
        return rule
    try:
        design = parse_design(document_of(case))
    except DesignError as error:
        return next(problem.code for problem in error.problems if problem.severity == "error")
    return next((problem.code for problem in run_problems(design)), None)


def verdict(case: Case) -> str | None:
    """Return the name of the rule or the code of the problem that excludes a case; None if it can be trained."""
    return _verdict(frozenset((axis, value) for axis, value in case.items() if value != AXES[axis][0]))


def plain_case(pair: Pair) -> Case:
    """Return the case that has the plainest values with which a pair has an effect."""
    case = shorten_case(complete(dict(pair)))
    for axis in list(case):
        _add_companions(case, axis, {name for name, _ in pair})
    return complete(case)


def _add_companions(case: Case, axis: str, fixed: set[str]) -> None:
    for other, value in COMPANIONS.get(axis, {}).items():
        if other not in case and other not in fixed:
            case[other] = value
            _add_companions(case, other, fixed)


def supported_case(pair: Pair, chance: random.Random) -> Case | None:
    """Return a case with a pair that can be trained; None if none was found."""
    fixed, found = dict(pair), plain_case(pair)
    if verdict(found) is None:
        return found
    free = [axis for axis in AXES if axis not in fixed]
    for number in range(TRIES):
        changed = chance.sample(free, 1 + number * 5 // TRIES)
        case = {**found, **{axis: chance.choice(AXES[axis]) for axis in changed}}
        if verdict(case) is None:
            return case
    return None


def fill(case: Case, fixed: set[str], missing: set[Pair], chance: random.Random) -> Case:
    """Return the case with other values of the axes that are not ``fixed``, which cover as many ``missing`` pairs as possible."""
    axes = [axis for axis in AXES if axis not in fixed]
    for _ in range(2):
        chance.shuffle(axes)
        for axis in axes:
            options = [{**case, axis: value} for value in AXES[axis]]
            gains = {id(option): sum(pair in missing for pair in pairs_of(option)) for option in options}
            now = gains[next(id(option) for option in options if option == case)]
            better = sorted(
                (option for option in options if gains[id(option)] > now), key=lambda each: -gains[id(each)]
            )
            case = next((option for option in better if verdict(option) is None), case)
    return case


def every_pair() -> Iterator[Pair]:
    """Yield all pairs of values of two axes."""
    for one, two in combinations(AXES, 2):
        yield from (((one, first), (two, second)) for first in AXES[one] for second in AXES[two])


def generate(seed: int = 16) -> tuple[list[Case], dict[str, list[list[str]]]]:
    """Return the cases, those with the most new pairs first, and the refused pairs by the rule or problem that refuses
    them.
    """
    chance = random.Random(seed)
    every = list(every_pair())
    chance.shuffle(every)
    missing, cases = set(every), list[Case]()
    refused: dict[str, list[list[str]]] = {}
    for pair in every:
        if pair not in missing:
            continue
        start = supported_case(pair, chance)
        if start is None:
            missing.discard(pair)
            reason = verdict(plain_case(pair))
            assert reason is not None
            refused.setdefault(reason, []).append([f"{axis}={value}" for axis, value in pair])
            continue
        case = fill(start, {axis for axis, _ in pair}, missing, chance)
        missing -= set(pairs_of(case))
        cases.append(case)
        print(len(cases), "cases,", len(missing), "pairs left", flush=True)
    return sort_cases(cases), {reason: sorted(pairs) for reason, pairs in sorted(refused.items())}


def sort_cases(cases: list[Case]) -> list[Case]:
    """Return the cases in an order in which each has as many new pairs as possible, without those that have none.

    Those in fp64, whose results are compared most strictly, come first.
    """
    left, covered, found = list(cases), set[Pair](), list[Case]()
    while left:
        best = max(left, key=lambda case: (case["precision"] == "fp64", _new_pairs(case, covered)))
        left.remove(best)
        if covered.issuperset(pairs_of(best)):
            continue
        covered |= set(pairs_of(best))
        found.append(best)
    return found


def _new_pairs(case: Case, covered: set[Pair]) -> tuple[int, int]:
    """Return the number of pairs that are not covered: those of two values that are not the plainest, and all."""
    new = [pair for pair in pairs_of(case) if pair not in covered]
    return sum(all(value != AXES[axis][0] for axis, value in pair) for pair in new), len(new)


def main() -> None:
    """Write the cover."""
    cases, refused = generate()
    rows = ",\n".join(json.dumps(shorten_case(case)) for case in cases)
    reasons = ",\n".join(f"{json.dumps(reason)}: {json.dumps(pairs)}" for reason, pairs in refused.items())
    FILE.write_text(f'{{"cases": [\n{rows}\n],\n"refused": {{\n{reasons}\n}}}}\n')
    print(len(cases), Counter({reason: len(pairs) for reason, pairs in refused.items()}))


if __name__ == "__main__":
    main()
