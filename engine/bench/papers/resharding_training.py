"""Cross-mesh resharding end to end (arXiv:2211.05322, section 5.2): training steps of the artifact's models.

Stages are priced by the roofline model, or by FLOPs for the U-Transformer; a transfer takes the makespan of its plan.
Three modes of transfer are compared. *On the compute stream*, both ends wait for it, as in alpa: its seconds are added
to those of both stages. *Overlapped*, each link carries one transfer at a time while both ends compute. A *signal* is a
transfer of one byte, a lower bound for all communication.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from meshwave.engine.bench.papers.resharding_steps import (
    SHOWN,
    U_TRANSFORMERS,
    TrainingStep,
    gpt_training_steps,
    predict_u_transformer,
    u_transformer_training_steps,
)
from meshwave.engine.bench.papers.table import Grid, GridRow, Row, Table, ranking_text


def tables() -> Iterator[Table | Grid]:
    """Yield the throughput of every series, and the gains that the paper states."""
    found = {**gpt_training_steps(), **u_transformer_training_steps()}
    yield throughput(found)
    yield iterations(found)
    yield gains(found)
    yield overlap_by_microbatches()
    yield ablation()


BALANCE = "the second stage has 63% of the FLOPs, so idle time of the first stage hides transfers even without overlap"
FEW = "with the four microbatches of the released test, warm-up and cool-down are long; the paper does not state its batch"
FAST = (
    "stages run at half a V100's peak; slower stages would reduce the share of transfers. Each mesh is on one host, so alpa's "
    "gather sends no byte twice, and the whole gain comes from overlap"
)


def throughput(found: Mapping[str, TrainingStep]) -> Grid:
    """Return the throughputs of all series."""
    rows = [
        GridRow(name, [of.bytes / 1e6, of.round_s, of.crossing["Broadcast"], *(of.tflops(series) for series in SHOWN)])
        for name, of in found.items()
    ]
    return Grid(
        "Cross-mesh resharding end to end (5.2): TFLOPS of the whole job",
        ["MB", "f+b, s", "c, s", *SHOWN],
        rows,
        note="GPT: sequences / microbatches, dp.op.pp. The first columns are the bytes of one microbatch over the slowest "
        "boundary, the time of a microbatch on the slowest stage (forward and backward), and the time to broadcast the bytes. "
        "Send/Recv, Alpa, Broadcast and Signal run on the compute stream with 1F1B. The next three overlap the broadcast with "
        "compute: with 1F1B, with eager 1F1B (Ours), and with eager 1F1B that delays weight gradients, which the paper's "
        "release does not include. Assumed: V100 at half its peak (125 TFLOPS, fp32 15.7), full recomputation, activations "
        "sharded over replicas and replicated in a tensor-parallel group, and two nodes, of which GPT 1.3B uses two GPUs each "
        "(on one node its transfers would be free). The artifact leaves the sharding of the U-Transformer to a search; "
        "here images are either sharded over a mesh or replicated.",
    )


def iterations(found: Mapping[str, TrainingStep]) -> Grid:
    """Return the step times of all series."""
    rows = [GridRow(name, [of.seconds[series] for series in SHOWN]) for name, of in found.items()]
    return Grid("Cross-mesh resharding end to end (5.2): seconds of a step", SHOWN, rows)


def gains(found: Mapping[str, TrainingStep]) -> Table:
    """Return the gains over Alpa, which the abstract states."""
    rows = []
    for name, of in found.items():
        paper = 50 if name.startswith("U") else 10
        why = FEW if "/4," in name else BALANCE if " 1B" in name else FAST
        rows.append(Row(f"{name}: over Alpa, %", paper, of.gain("Alpa"), why))
    return Table(
        "Cross-mesh resharding end to end: throughput of broadcast with eager 1F1B over Alpa",
        rows,
        tolerance=0.5,
        note="The paper states +10% for GPT and +50% for the U-Transformer, without their configurations.",
    )


MICROBATCHES = (4, 8, 16, 32, 64)
ABLATION = ("Broadcast", "+ overlap", "Ours")


def overlap_by_microbatches() -> Grid:
    """Return the ablation of overlap on the larger U-Transformer, by number of microbatches."""
    rows = []
    for count in MICROBATCHES:
        of = predict_u_transformer(U_TRANSFORMERS["U-Transformer 2B, 8 GPUs, by image"]._replace(microbatches=count))
        rows.append(GridRow(f"2048 images in {count}", [of.tflops(series) for series in (*ABLATION, "Signal")]))
    return Grid(
        "Cross-mesh resharding, ablation of overlap (5.3): TFLOPS of U-Transformer 2B by number of microbatches",
        [*ABLATION, "Signal"],
        rows,
    )


def ablation() -> Table:
    """Return the order of the series in the ablation."""
    of = predict_u_transformer(U_TRANSFORMERS["U-Transformer 2B, 8 GPUs, by image"])
    names = dict(zip(ABLATION, ("Broadcast", "Overlap", "Eager-1F1B"), strict=True))
    found = ranking_text({name: of.tflops(series) for series, name in names.items()})
    rows = [Row("2B, 32 microbatches", "Broadcast < Overlap < Eager-1F1B", found)]
    return Table("Cross-mesh resharding, ablation of overlap: order of the series", rows)
