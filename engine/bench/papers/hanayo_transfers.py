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
    "sender-blocking": "a rank waits for its sends, even if it receives nothing",
    "link-serial": "each direction of a link has the full rate",
    "batched": "both ranks wait for a batch, whose two directions take one T_C; an adjacent send and receive are one "
    "batch even if one of them is earlier in the figure",
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
            f"{_table_title(name, ranks, options)}, {model}",
            printed,
            exposed_count(name, ranks, model, **options),
            WHY.get(model, ""),
        )
        for model in models
        for name, ranks, options, printed in DRAWN
    ]
    return Table(
        "Hanayo, figure 3: T_C for which a step waits, by transfer model",
        rows,
        note="half-duplex: simultaneous transfers of two ranks in opposite directions share the rate of their link. "
        "Only Chimera has such transfers. All schedules agree with the figure.",
    )


def _table_title(name: str, ranks: int, options: dict[str, Any]) -> str:
    waves = f", W={options['waves']}" if "waves" in options else ""
    return f"{schedules[name].title}, {ranks} x {ranks}{waves}"
