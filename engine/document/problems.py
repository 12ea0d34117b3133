"""Problems of a design as a whole: checks that compare its parts with each other.

:mod:`meshwave.engine.document.validation_problems` reports the problems of single values.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from meshwave.engine.document.expert_problems import expert_problems
from meshwave.engine.document.mesh_problems import (
    context_parallel_problems,
    device_problems,
    mesh_name_problems,
    mesh_shape_problems,
    tensor_parallel_problems,
)
from meshwave.engine.document.model import LanguageModel
from meshwave.engine.document.partial_validation import replace_refused_parts
from meshwave.engine.document.pipeline_problems import order_problems, schedule_problems, stage_problems
from meshwave.engine.findings import Problem, set_key_fix

if TYPE_CHECKING:
    from meshwave.engine.document.design import Design

MAX_LISTED = 20
"""Maximum number of problems of one kind that are listed one by one."""


def problems(design: Design) -> list[Problem]:
    """Return all errors and warnings of a design whose parts are individually valid."""
    return limit_repetition(_run_checks(design, frozenset(type(design).model_fields)))


def problems_of_valid_parts(document: Mapping[str, Any], refused: Sequence[Problem]) -> list[Problem]:
    """Return the inconsistencies among the valid parts of a document whose other parts were ``refused``.

    A refused value that no check needs is replaced by a valid one, so that its section can be checked; other refused
    sections are skipped.
    """
    from meshwave.engine.document.design import Design

    replaced, invalid = replace_refused_parts(document, refused)
    try:
        design = Design.model_validate_json(json.dumps(replaced))
    except ValidationError:
        return []
    return _run_checks(design, frozenset(Design.model_fields) - invalid)


def limit_repetition(found: Iterable[Problem]) -> list[Problem]:
    """Return the first problems of each kind, and one problem that counts the remaining problems of that kind."""
    kinds: Counter[str] = Counter()
    listed: list[Problem] = []
    first: dict[str, Problem] = {}
    for problem in found:
        kinds[problem.code] += 1
        first.setdefault(problem.code, problem)
        if kinds[problem.code] <= MAX_LISTED:
            listed.append(problem)
    for code, problem in first.items():
        if kinds[code] > MAX_LISTED:
            where, params = problem.where.partition("[")[0], {"count": kinds[code] - MAX_LISTED}
            listed.append(Problem(where, "unlisted_problems", params, problem.severity))
    return listed


def _run_checks(design: Design, valid: frozenset[str]) -> list[Problem]:
    """Run the checks that only need ``valid`` sections."""
    found = [problem for check, needs in _CHECKS.items() if valid.issuperset(needs) for problem in check(design)]
    if valid.issuperset(("meshes", "pipeline")):
        found += stage_problems(design, valid, found)
    return found


def _name_problems(design: Design) -> Iterator[Problem]:
    if not design.name.strip():
        yield Problem("name", "empty_name", severity="warning")


def _data_problems(design: Design) -> Iterator[Problem]:
    if not design.model.window and design.training.data is not None:
        where = "training.data"
        yield Problem(where, "unused_data", {"model": design.model.kind}, fixes=[set_key_fix(where, None)])
    if design.training.tokenizer is not None and design.training.data is None:
        where = "training.tokenizer"
        yield Problem(where, "tokenizer_without_data", fixes=[set_key_fix(where, None)])
    if design.training.end_of_text is not None and design.training.tokenizer is None:
        where = "training.end_of_text"
        yield Problem(where, "end_of_text_without_tokenizer", fixes=[set_key_fix(where, None)])
    if design.training.document_end == "end_of_text" and design.training.tokenizer and not design.training.end_of_text:
        where = "training.end_of_text"
        yield Problem(where, "document_end_without_end_of_text", fixes=[set_key_fix("training.document_end", None)])
    if design.training.document_end is not None and not isinstance(design.model, LanguageModel):
        where = "training.document_end"
        yield Problem(where, "documents_without_text", {"model": design.model.kind}, fixes=[set_key_fix(where, None)])
    if design.training.pad_documents and design.training.document_end is None:
        where = "training.pad_documents"
        yield Problem(where, "padding_without_documents", fixes=[set_key_fix(where, False)])
    if design.training.document_lengths is not None and design.training.document_end is None:
        where = "training.document_lengths"
        yield Problem(where, "unused_document_lengths", severity="warning", fixes=[set_key_fix(where, None)])


def _sharding_problems(design: Design) -> Iterator[Problem]:
    """Yield problems of shared state: gradients that replicas on other meshes share, and options without effect."""
    training, where = design.training, "training.sharding"
    if training.shards_gradients and len(design.pipeline.routes(design.pipe)) > 1:
        params = {"schedule": design.pipeline.schedule, "sharding": training.sharding}
        yield Problem(where, "sharded_replicas", params, fixes=[set_key_fix(where, "optimizer")])
    if training.unsharded_stages is not None and training.sharding != "parameters":
        where = "training.unsharded_stages"
        params = {"sharding": training.sharding}
        yield Problem(where, "unused_unsharded_stages", params, "warning", fixes=[set_key_fix(where, None)])
    if training.blocking_gathers and not design.gathers_blocks:
        where = "training.blocking_gathers"
        yield Problem(where, "unused_blocking_gathers", severity="warning", fixes=[set_key_fix(where, False)])
    if training.gradient_reduction == "step" and not training.shards_gradients:
        where = "training.gradient_reduction"
        params = {"sharding": training.sharding}
        yield Problem(where, "unused_gradient_reduction", params, "warning", fixes=[set_key_fix(where, "microbatch")])
    if training.gradient_buckets > 1 and training.scatters_blocks:
        where = "training.gradient_buckets"
        params = {"sharding": training.sharding}
        yield Problem(where, "unused_gradient_buckets", params, "warning", fixes=[set_key_fix(where, 1)])
    elif training.gradient_buckets > 1 and not _may_share_weights(design):
        where = "training.gradient_buckets"
        yield Problem(where, "unshared_gradient_buckets", {}, "warning", fixes=[set_key_fix(where, 1)])


def _may_share_weights(design: Design) -> bool:
    """Return True if devices may hold the same weights, so that their gradients are reduced."""
    divides_tokens = design.training.sequence_parallel or design.model.moe is not None
    return len(design.pipeline.routes(design.pipe)) > 1 or any(
        mesh.dp > 1 or (divides_tokens and len(mesh.devices) > 1) for mesh in design.meshes
    )


Check = Callable[["Design"], Iterator[Problem]]

_CHECKS: dict[Check, tuple[str, ...]] = {
    _name_problems: ("name",),
    device_problems: ("cluster", "meshes"),
    mesh_name_problems: ("meshes",),
    mesh_shape_problems: ("cluster", "meshes"),
    tensor_parallel_problems: ("model", "meshes"),
    context_parallel_problems: ("model", "meshes"),
    _data_problems: ("model", "training"),
    order_problems: ("model", "meshes", "pipeline"),
    schedule_problems: ("meshes", "pipeline"),
    _sharding_problems: ("model", "meshes", "pipeline", "training"),
    expert_problems: ("cluster", "model", "meshes", "experts"),
}
"""Sections of the document that each check needs."""
