"""Exposed transfers in the figures of the Hanayo paper, under each transfer model."""

from __future__ import annotations

from typing import Any, get_args

from meshwave.engine.bench.papers.schedule_simulation import schedule_program, simulate_uniform
from meshwave.engine.bench.papers.table import Row, Table
from meshwave.engine.program.simulation import TransferModel, UnitTransferModel
from meshwave.engine.schedules import schedules

TRANSFER = 1 / 16
"""T_C of figure 3, in units of T_F."""
DRAWN: tuple[tuple[str, int, dict[str, Any], int], ...] = (
    ("gpipe", 4, {}, 6),
    ("1f1b", 4, {}, 10),
    ("hanayo", 4, {"waves": 1}, 16),
    ("hanayo", 4, {"waves": 2}, 28),
    ("chimera", 8, {}, 22),
)
"""Schedules of figure 3: number of ranks (and microbatches), options, and exposed transfers in the figure."""
PAPERS_MODEL: TransferModel = "half-duplex"
WHY: dict[TransferModel, str] = {
    "latency": "opposite transfers of two ranks do not slow each other down",
    "sender-blocking": "a rank waits for what it sends, also where it receives nothing",
    "link-serial": "each direction of a link carries its transfers at the full rate",
    "batched": "both ranks wait for a batch, whose two directions take one T_C: a send and a receive that stand next "
    "to each other are one batch also where the drawing lets one of them pass before the other",
}


def exposed_count(name: str, ranks: int, transfer_model: TransferModel, **options: Any) -> float:
    """Return the number of T_C by which a step is longer than with free transfers (B = 2F)."""
    program = schedule_program(name, ranks, ranks, **options)
    slow, free = (simulate_uniform(program, transfer=each, transfer_model=transfer_model) for each in (TRANSFER, 0.0))
    return round((slow.makespan - free.makespan) / TRANSFER, 9)


def exposed_transfers() -> Table:
    """Return the exposed transfers according to the paper and to each transfer model."""
    models: list[TransferModel] = [
        PAPERS_MODEL,
        *(each for each in get_args(UnitTransferModel) if each != PAPERS_MODEL),
    ]
    rows = [
        Row(
            f"{_title(name, ranks, options)}, {model}",
            printed,
            exposed_count(name, ranks, model, **options),
            WHY.get(model, ""),
        )
        for model in models
        for name, ranks, options, printed in DRAWN
    ]
    return Table(
        "Hanayo, figure 3: T_C that a step waits for, by the model of transfers",
        rows,
        note="half-duplex: opposite transfers of two ranks that are on their way at the same moment share their link. "
        "Only Chimera has any; it comes out as drawn, and so do all others.",
    )


def transfer_summary() -> str:
    """Return a paragraph on exposed transfers for the page of papers."""
    found = {model: exposed_count("chimera", 8, model) for model in get_args(UnitTransferModel)}
    others = ", ".join(f"{found[model]:g} with {model}" for model in found if model != PAPERS_MODEL)
    return (
        f"**Cross-communication.** Figure 3(c) shows 22 T_C on the critical path of Chimera on 8 devices. The transfer model "
        f"{PAPERS_MODEL} gives {found[PAPERS_MODEL]:g} ({others}) and leaves the other drawings of figure 3 unchanged: two "
        "opposite transfers at the same time share the link of their ranks. `transfer.batched` issues a send and a receive "
        "that are next to each other with `batch_isend_irecv`, priced by the model batched: the next actions of both ranks "
        "wait for both transfers, and the two directions do not share a rate."
    )


def _title(name: str, ranks: int, options: dict[str, Any]) -> str:
    waves = f", W={options['waves']}" if "waves" in options else ""
    return f"{schedules[name].title}, {ranks} x {ranks}{waves}"
