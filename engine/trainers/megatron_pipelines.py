"""Conversion of meshes and pipelines to arguments of Megatron-LM, and back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import gcd

from meshwave.engine import messages
from meshwave.engine.document.cluster import MAX_DEVICES
from meshwave.engine.document.design import Design
from meshwave.engine.document.expert_layers import expert_group_sizes
from meshwave.engine.trainers.argument_reader import ArgumentReader
from meshwave.engine.trainers.jobs import Degrees
from meshwave.engine.trainers.launch_script import Arguments
from meshwave.engine.trainers.megatron_layout import read_layout, write_layout
from meshwave.engine.trainers.models import Json


def read_degrees(reader: ArgumentReader, devices: int | None) -> Degrees:
    """Return the sizes of the groups; the data-parallel size follows from the number of devices.

    The number of devices is that of the launch command, or else ``devices``. If the model cannot be divided among so
    many devices, it is the smallest possible number.
    """
    tp, pp, cp, ep = (
        reader.integer(f"--{name}-parallel-size", 1)
        for name in ("tensor-model", "pipeline-model", "context", "expert-model")
    )
    etp = reader.integer("--expert-tensor-parallel-size", tp)
    if min(tp, pp, cp, ep, etp) < 1:
        reader.add_problem("parallel_sizes", most=MAX_DEVICES)
        return Degrees(1, 1, 1, 1)
    nodes, processes = reader.integer("--nnodes"), reader.integer("--nproc-per-node")
    stated = nodes * processes if nodes and processes else devices
    least = ep * etp // gcd(ep * etp, cp * tp)  # data-parallel replicas that hold all experts
    per_replica = tp * cp * pp
    dp = (stated or 0) // per_replica
    if dp == 0 or dp % least or (stated or 0) % per_replica:
        if nodes and processes:
            reader.add_note("other_device_count", stated=stated, used=least * per_replica)
        dp = least
    if (degrees := Degrees(dp, cp, tp, pp, ep, etp)).devices > MAX_DEVICES:
        reader.add_problem("parallel_sizes", most=MAX_DEVICES)
        return Degrees(1, 1, 1, 1)
    return degrees


def degree_arguments(design: Design) -> Arguments:
    """Return the arguments of the sizes of the groups of a design with equal meshes."""
    mesh = design.meshes[0]
    found: Arguments = {
        "--tensor-model-parallel-size": (str(mesh.tp),),
        "--pipeline-model-parallel-size": (str(len(design.meshes)),),
        "--context-parallel-size": (str(mesh.cp),),
    }
    if design.model.moe is not None:
        ep, esp = expert_group_sizes(design, mesh)
        found["--expert-model-parallel-size"] = (str(ep),)
        found["--expert-tensor-parallel-size"] = (str(esp),)
    return found


# ---- stages ----


LAYOUT = "--pipeline-model-parallel-layout"
OVERLAP = "--overlap-moe-expert-parallel-comm"


def read_pipeline(reader: ArgumentReader, layers: int, mtp_layers: int, degrees: Degrees) -> Json:
    """Return the pipeline section.

    Args:
        reader: the arguments.
        layers: number of layers without those of multi-token prediction.
        mtp_layers: number of layers of multi-token prediction, which a design has at the end of the last stage.
        degrees: the sizes of the groups.
    """
    per_step = reader.integer("--micro-batch-size", 1) * degrees.dp
    batch = reader.integer("--global-batch-size", per_step)
    if per_step < 1 or batch < 1 or batch % per_step:
        reader.add_problem("indivisible_global_batch", batch=batch, dp=degrees.dp, size=per_step // max(degrees.dp, 1))
        return {}
    stages = _read_stages(reader, layers, degrees.pp)
    if 0 not in stages and not reader.text(LAYOUT):
        stages[-1] += mtp_layers
    group = reader.integer("--microbatch-group-size-per-virtual-pipeline-stage")
    chunks, overlaps = len(stages) // degrees.pp, reader.has_argument(OVERLAP)
    pipeline: Json = {"schedule": "1f1b", "microbatches": batch // per_step}
    if chunks > 1 or overlaps:
        pipeline |= {"schedule": "interleaved-1f1b", "chunks": chunks, "group": None if group == degrees.pp else group}
        pipeline["slots"] = "fused" if overlaps else "single"
    is_even_split = len(stages) == 1 or 0 in stages
    pipeline["stages"] = None if is_even_split else stages
    pipeline["recompute"] = _read_recompute(reader, stages)
    return pipeline


def _read_stages(reader: ArgumentReader, layers: int, pp: int) -> list[int]:
    """Return the number of layers of each stage.

    Zeros, which mean balanced layers, if a design cannot have these stages.
    """
    first, last = (reader.integer(f"--decoder-{each}-pipeline-num-layers") for each in ("first", "last"))
    has_embedding = reader.has_argument("--account-for-embedding-in-pipeline-split")
    has_loss = reader.has_argument("--account-for-loss-in-pipeline-split")
    chunks = reader.integer("--num-virtual-stages-per-pipeline-rank", 1)
    per_stage = reader.integer("--num-layers-per-virtual-pipeline-stage")
    if layout := reader.text(LAYOUT):
        return _layout_stages(reader, layout, layers, pp)
    if per_stage:
        chunks = (layers + has_embedding + has_loss) // pp // per_stage
    if first is not None or last is not None:
        return _uneven_stages(reader, layers, pp, chunks, (first, last))
    count = pp * chunks
    share, rest = divmod(layers + has_embedding + has_loss, max(count, 1))
    if count < 1 or rest or not share:
        reader.add_problem("indivisible_layers", layers=layers, stages=count)
        return [layers]
    stages = [share] * count
    stages[0] -= has_embedding
    stages[-1] -= has_loss
    return _check_stages(reader, stages)


def _layout_stages(reader: ArgumentReader, layout: str, layers: int, pp: int) -> list[int]:
    letters = read_layout(layout) or []
    if sum(stage.count("t") for stage in letters) != layers or len(letters) % pp:
        reader.add_problem("unreadable_layout", layout=layout, layers=layers, pp=pp)
        return [layers]
    is_split = any("m" in stage for stage in letters[:-1])
    return _check_stages(reader, [stage.count("t") + stage.count("m") for stage in letters], is_split)


def _uneven_stages(
    reader: ArgumentReader, layers: int, pp: int, chunks: int, ends: tuple[int | None, int | None]
) -> list[int]:
    """Return the stages if the first and the last rank have given numbers of layers, and the others equal ones."""
    inner = pp - sum(count is not None for count in ends)
    share, rest = divmod(layers - sum(count or 0 for count in ends), max(inner, 1))
    ranks = [share] * pp
    for place, count in zip((0, -1), ends, strict=True):
        ranks[place] = ranks[place] if count is None else count
    if inner < 0 or rest or sum(ranks) != layers or chunks < 1 or any(count % chunks for count in ranks):
        reader.add_problem("indivisible_layers", layers=layers, stages=pp * chunks)
        return [layers]
    return _check_stages(reader, [count // chunks for count in ranks] * chunks)


def _check_stages(reader: ArgumentReader, stages: list[int], is_split: bool = False) -> list[int]:
    """Return the stages; zeros if one has no layers, or if multi-token prediction is not on the last stage."""
    if min(stages) >= 1 and not is_split:
        return stages
    reader.add_note("balanced_stages")
    return [0] * len(stages)


def stage_arguments(design: Design, layers: Sequence[int]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the arguments that divide the layers into stages.

    Args:
        design: the design.
        layers: number of layers of each stage.
    """
    chunks = len(layers) // len(design.meshes)
    mtp_layers = design.model.architecture.mtp_layers
    if len({*layers[:-1], layers[-1] - mtp_layers}) > 1:
        yield LAYOUT, (write_layout(layers, mtp_layers),)
    elif chunks > 1:
        yield "--num-layers-per-virtual-pipeline-stage", (str(layers[0]),)
    if (group := getattr(design.pipeline, "group", None)) is not None and chunks > 1:
        yield "--microbatch-group-size-per-virtual-pipeline-stage", (str(group),)
    if getattr(design.pipeline, "slots", "single") == "fused":
        yield OVERLAP, ()


# ---- recomputation ----


def _read_recompute(reader: ArgumentReader, stages: Sequence[int]) -> str:
    is_selective = reader.has_argument("--recompute-activations")
    granularity = reader.choice("--recompute-granularity", {"": "", "full": "full", "selective": "selective"}, "")
    method, count = reader.text("--recompute-method"), reader.integer("--recompute-num-layers", 1)
    modules = reader.words("--recompute-modules")
    if is_selective or granularity == "selective":
        if modules and modules != ("core_attn",):
            reader.add_note("other_recompute", argument=f"--recompute-modules {' '.join(modules)}", used="attention")
        return "attention"
    if not granularity:
        return "none"
    used = "full" if count >= max(stages) > 1 else "layers"
    if method != "uniform" or 1 < count < max(stages):
        argument = f"--recompute-method {method} --recompute-num-layers {count}"
        reader.add_note("other_recompute", argument=argument, used=used)
    return used


def recompute_arguments(design: Design, layers: Sequence[int]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the arguments of recomputation, if Megatron-LM supports it."""
    recompute = design.pipeline.recompute
    is_full = recompute != "none" and all(design.pipeline.recomputes(stage) for stage in range(len(layers)))
    if recompute == "attention":
        yield "--recompute-granularity", ("selective",)
    elif is_full or recompute == "layers":
        yield "--recompute-granularity", ("full",)
        yield "--recompute-method", ("uniform",)
        yield "--recompute-num-layers", (str(max(layers) if is_full else 1),)


messages.add_messages(
    parallel_sizes="the parallel sizes are below 1, or need more than {most:,} devices; correct the arguments --*-parallel-size",
    other_device_count="the design uses {used} devices; the model cannot be divided among the {stated} of the launch command",
    indivisible_global_batch=(
        "--global-batch-size {batch} is not a multiple of the microbatch size {size} times {dp} data-parallel replicas"
    ),
    indivisible_layers="{layers} layers cannot be divided into {stages} stages as the arguments say; correct them",
    unreadable_layout=(
        "--pipeline-model-parallel-layout {layout} does not divide {layers} layers into stages of {pp} ranks; correct it"
    ),
    balanced_stages=(
        "a design has layers on every stage, and multi-token prediction on the last one, unlike these arguments; its layers "
        "are balanced by their cost"
    ),
    other_recompute="{argument} cannot be represented in a design; it recomputes '{used}' instead",
)
