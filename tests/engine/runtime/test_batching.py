"""Tests of batched messages between real processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from meshwave.engine.document import parse_design
from meshwave.engine.lowering.lower import lower
from tests.engine.runtime.crew_client import Crew, Document
from tests.engine.runtime.equality import assert_equal, case_name, layers_for, reference

TASKS = "tests.engine.runtime.batching_tasks"
PIPELINES = [
    ({"schedule": "1f1b", "microbatches": 6}, 3, 1),
    ({"schedule": "1f1b", "microbatches": 4}, 2, 2),
    ({"schedule": "hanayo", "waves": 2, "microbatches": 4}, 4, 1),
    ({"schedule": "chimera", "microbatches": 4}, 4, 1),
    ({"schedule": "chimera", "microbatches": 8}, 4, 1),
    ({"schedule": "zb-v", "microbatches": 4}, 2, 1),
    ({"schedule": "dualpipe", "microbatches": 8}, 4, 1),
]


def batched_document(document: Document) -> Document:
    return {**document, "transfer": {"batched": True}}


@pytest.mark.parametrize(("pipeline", "pp", "dp"), PIPELINES, ids=case_name)
def test_a_batched_run_trains_like_one_process(
    pipeline: Document, pp: int, dp: int, crew: Crew, draw: Callable[..., Document]
) -> None:
    document = batched_document(draw(pipeline, pp=pp, dp=dp, layers=layers_for(pipeline, pp)))

    assert_equal(crew.train(document), reference(document))


@pytest.mark.parametrize(
    "pipeline", [{"schedule": "1f1b", "microbatches": 6}, {"schedule": "chimera", "microbatches": 4}], ids=case_name
)
def test_a_process_issues_the_batches_of_its_program(
    pipeline: Document, crew: Crew, draw: Callable[..., Document]
) -> None:
    document = batched_document(draw(pipeline, pp=4, layers=9))
    program = lower(parse_design(document))
    sends = np.flatnonzero(program.batch >= 0)
    expected = [
        sorted(
            Counter(
                program.batch[sends[(program.rank[sends] == rank) | (program.peer[sends] == rank)]].tolist()
            ).values()
        )
        for rank in range(4)
    ]
    assert all(expected)

    assert crew.call(f"{TASKS}:issued_batch_sizes", 4, document) == expected
    assert crew.call(f"{TASKS}:issued_batch_sizes", 4, {**document, "transfer": {}}) == [[]] * 4
