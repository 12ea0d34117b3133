"""Training equals one process for a pairwise cover of schedules, axes of parallelism, models and settings."""

from __future__ import annotations

import json
from itertools import chain
from math import sqrt
from typing import Any

import numpy as np
import pytest

from tests.engine.runtime.cover.axes import Case, complete, document_of, pairs_of
from tests.engine.runtime.cover.generation import FILE, every_pair, plain_case, verdict
from tests.engine.runtime.equality import Document, assert_equal, part, reference
from tests.engine.runtime.reference import Reference

COVER = json.loads(FILE.read_text())
DAILY = 2
"""Number of cases that are not nightly: those with the most pairs."""
ROUGH = 0.15
"""Relative difference of results in low precision."""
ADVICE = "generate the cover again: python -m tests.engine.runtime.cover.generation"


def test_the_cover_has_every_pair_that_a_design_can_have() -> None:
    cases = [complete(case) for case in COVER["cases"]]
    refused = {
        tuple(tuple(value.split("=")) for value in pair): reason
        for reason, pairs in COVER["refused"].items()
        for pair in pairs
    }
    assert [case for case in cases if verdict(case)] == [], ADVICE
    assert set(chain.from_iterable(map(pairs_of, cases))) | set(refused) == set(every_pair()), ADVICE
    assert {pair: verdict(plain_case(pair)) for pair in refused} == refused, ADVICE


def plain_reference(document: Document) -> Reference:
    """Return the reference of a document without the settings that a single process does not have."""
    without = {
        "sharding": "none",
        "sequence_parallel": False,
        "unsharded_stages": None,
        "gradient_reduction": "microbatch",
        "gradient_buckets": 1,
        "activation_offload": 0.0,
        "bf16_gradients": False,
        "attention_kernel": "default",
    }
    return reference({**document, "training": {**document["training"], **without}})


def cases() -> list[Any]:
    return [
        pytest.param(case, id="-".join(case.values()), marks=[pytest.mark.nightly] if number >= DAILY else [])
        for number, case in enumerate(COVER["cases"])
    ]


def is_near(outcomes: list[Any], expected: Reference) -> bool:
    """Return True if the results of a run in low precision are near the reference.

    AdamW turns small gradients, whose sign may be a rounding error, into steps of full size, so that the difference is
    that of all tensors of a process together.
    """
    held: set[str] = set()
    for outcome in outcomes:
        assert isinstance(outcome, dict), outcome
        held |= set(outcome["parameters"])
        for name in ("losses", "grad_norms", "evaluations"):
            if not np.allclose(outcome[name], getattr(expected, name), rtol=ROUGH / 5, atol=0):
                return False
        for kind in ("gradients", "parameters"):
            wanted = {name: part(outcome, name, getattr(expected, kind)) for name in outcome[kind]}
            difference = [value - wanted[name] for name, value in outcome[kind].items()]
            if norm(difference) > ROUGH * norm(wanted.values()):
                return False
    assert held == set(expected.parameters), "all parts of the model were trained"
    return True


def norm(tensors: Any) -> float:
    return sqrt(sum(float(np.linalg.norm(tensor)) ** 2 for tensor in tensors))


def in_fp64(document: Document) -> Document:
    return {**document, "training": {**document["training"], "precision": "fp64", "bf16_gradients": False}}


@pytest.mark.parametrize("case", cases())
def test_a_case_of_the_cover_trains_like_one_process(case: Case, crew: Any) -> None:
    document = document_of(case)
    outcomes, expected = crew.train(document), plain_reference(document)
    if complete(case)["precision"] == "fp64":
        assert_equal(outcomes, expected)
    elif not is_near(outcomes, expected):  # perhaps because of the rounding errors of the single process
        exact = plain_reference(in_fp64(document))
        assert is_near(outcomes, exact)
        assert_equal(crew.train(in_fp64(document)), exact)
