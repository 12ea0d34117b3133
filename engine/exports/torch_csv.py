"""Export of a program as the schedule CSV of torch.distributed.pipelining, with one line per rank.

The format is ``compute_only``: torch's runtime adds its own sends, receives and reductions when it loads the file, and
derives the rank of each stage from the lines.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from meshwave.engine.document import Design
from meshwave.engine.exports._base import Export, exports
from meshwave.engine.findings import Refusal
from meshwave.engine.program.action import Op
from meshwave.engine.program.program import Program, format_program

if TYPE_CHECKING:
    from meshwave.engine.predict.prediction import Prediction


@exports.register("torch-csv")
class TorchCsv(Export):
    """Computations of all ranks, for torch's own runtime and for torchtitan."""

    title = "torch CSV"
    note = "torch.distributed.pipelining"
    suffix = ".csv"
    mime = "text/csv"

    @staticmethod
    def to_bytes(prediction: Prediction) -> bytes:
        check_equal_meshes(prediction.design, "torch's pipelining")
        return ("\n".join(schedule_rows(prediction.program)) + "\n").encode()

    @staticmethod
    def omissions(prediction: Prediction) -> list[str]:
        return list(missing_properties(prediction.design, prediction.program))


def check_equal_meshes(design: Design, tool: str) -> None:
    """Check that all meshes have the same axes, as required by pipelines of a tool.

    Raises:
        InputError: the meshes differ.
    """
    shapes = {(mesh.dp // mesh.cp, mesh.cp, mesh.tp): mesh.name for mesh in design.meshes}
    if len(shapes) > 1:
        drawn = [f"{name} dp={dp}{f' x cp={cp}' * (cp > 1)} x tp={tp}" for (dp, cp, tp), name in shapes.items()]
        raise Refusal("unequal_meshes_for_torch", {"tool": tool, "meshes": " and ".join(drawn[:2])})


def missing_properties(design: Design, program: Program) -> Iterator[str]:
    """Yield properties of a design that an order of stages cannot represent, and that torch's modules must have."""
    mesh, moe, pipeline = design.meshes[0], design.model.moe, design.pipeline
    if mesh.dp * mesh.tp > 1:
        yield f"each line is a mesh of dp={mesh.dp} x tp={mesh.tp} devices; the modules must distribute a stage over them"
    if mesh.tp > 1:
        yield f"torch sends from each device to its counterpart; the {design.transfer.strategy} transfers are not used"
    if moe is not None and design.model.expert_blocks:
        yield (
            f"the experts ({moe.experts} in every {ordinal(moe.every)}block, {design.experts.schedule} with "
            f"ep={design.experts.ep} x esp={design.experts.esp}) must be part of the modules of the stages"
        )
    if chosen := [str(stage) for stage in range(program.stages) if pipeline.recomputes(stage)]:
        which = "all stages" if len(chosen) == program.stages else f"stage{'s' * (len(chosen) > 1)} {', '.join(chosen)}"
        yield f"the modules must recompute {which} (torch.utils.checkpoint)"
    if pipeline.recomputed_part is not None:
        yield f"the modules must recompute parts of each layer: {pipeline.recomputed_part} (torch.utils.checkpoint)"


def ordinal(number: int) -> str:
    """Return the ordinal in ``every 2nd block`` with a trailing space; empty for ``every block``."""
    if number == 1:
        return ""
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending} "


def schedule_rows(program: Program) -> list[str]:
    """Return one line of comma-separated computations per rank; a shared slot is ``(0F3;7B1)OVERLAP_F_B``.

    Raises:
        InputError: torch's runtime cannot run the program.
    """
    check_exportable(program)
    return [",".join(order) for order in format_program(program, compute_only=True)]


def check_exportable(program: Program) -> None:
    """Check that torch's runtime can run a program.

    Raises:
        InputError: torch's runtime would reject the program, or run it incorrectly.
    """
    if program.replicas > 1:
        raise Refusal("replicas_for_torch", {"replicas": program.replicas})
    if program.distant_skips:
        source, target = program.distant_skips[0]
        raise Refusal("skips_for_torch", {"source": source, "target": target})
    last = np.flatnonzero((program.op == Op.F) & (program.stage == program.stages - 1))
    falls = np.flatnonzero(np.diff(program.microbatch[last]) < 0)
    if len(falls):
        early, late = (str(program.row(last[at])) for at in (falls[0] + 1, falls[0]))
        order = {"rank": int(program.rank[last[0]]), "stage": program.stages - 1, "late": late, "early": early}
        raise Refusal("loss_order_for_torch", order)
