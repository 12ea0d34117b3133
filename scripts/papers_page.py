"""Rewrite the computed section of ``docs/papers.md``, on Hanayo's experiments: ``python scripts/papers_page.py``."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import get_args

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from meshwave.engine.bench.markdown import markdown_table, wrap_section  # noqa: E402
from meshwave.engine.bench.papers import (  # noqa: E402
    hanayo_clusters,
    hanayo_memory,
    hanayo_scaling,
    hanayo_throughput,
    hanayo_transfers,
)
from meshwave.engine.bench.papers.table import Grid, Row, Table, is_different  # noqa: E402
from meshwave.engine.program.simulation import UnitTransferModel  # noqa: E402

PAGE = ROOT / "docs" / "papers.md"
BEGIN, END = "<!-- Hanayo, computed: scripts/papers_page.py -->", "<!-- Hanayo, end -->"

CLUSTERS = """\
Bars are speed-ups over GPipe; errors are medians. *Data sheets*: a roofline with the links and devices as sold, for designs
of D data-parallel pipelines whose gradients are reduced; nothing is fitted. *T_C fitted*: unit costs with one number per
cluster and P. The paper states none of the following, which is assumed throughout: fp32 on CUDA cores unless 16 bit is
stated, 256 tokens, half of the peak, as many microbatches of B sequences as a pipeline has devices, AdamW, no recomputation,
pipelines on consecutive GPUs. Chimera-wave, the paper's baseline, is one wave over half of the devices in twice as many
pipelines (figure 5); one wave over all devices, the other interpretation, has its own rows. Gain of the best number of waves
over Chimera-wave, in percent:"""

THROUGHPUT = """\
**Meaning of the printed sequences/s.** On the same GPUs, the printed throughput is proportional to D: two pipelines of four
devices have twice the throughput of one of eight, and four of eight twice that of two of sixteen. No schedule can achieve
that in sequences/s. The figures agree if a step counts D B sequences, although each of its P microbatches has B of them.
This is an interpretation; one bar contradicts it (GPT, two waves, P=16). **Precision**: the ratio of V100 to A100 is that of their
fp32 peaks. From a roofline of tensor cores to the printed figure, for two waves on 8 GPUs of TACC:"""

SCALING = """\
**Scaling and search** on TACC, by data sheets. The printed steps lose nothing to the reduction of gradients; the predicted
steps lose the time of its bytes through one NIC for three GPUs. A roofline contains no kernel launches, which the strong
scaling of the paper shows. Percent of 8 GPUs:"""

MEMORY = """\
**Memory** on 32 GPUs of 40 GB. One number is fitted to one variance: the sequence length to that of 1F1B. It represents the
bytes that a layer keeps, which unfused attention reaches with fewer tokens. Variance of GB over devices:"""


def section() -> str:
    """Return the section with computed figures."""
    winners = hanayo_scaling.winners().rows
    parts = [
        BEGIN,
        "## Hanayo",
        'Liu et al., "Hanayo: Harnessing Wave-like Pipeline Parallelism" (arXiv:2308.15762), section 5.',
        hanayo_clusters.fit_summary(),
        _grid(hanayo_clusters.fit_accuracy()),
        CLUSTERS,
        _basis_table(hanayo_clusters.wave_gains()),
        THROUGHPUT,
        _grid(hanayo_throughput.roofline_to_paper()),
        SCALING,
        _basis_table(hanayo_scaling.weak_scaling(), "H-2"),
        _basis_table(hanayo_scaling.strong_scaling()),
        f"Configurations (D, P, W) that win the search on 32 GPUs: {_count_equal_winners(winners)}.",
        MEMORY,
        _basis_table(hanayo_memory.variances()),
        f"{hanayo_memory.correct_fits_text()}. {hanayo_memory.fit_note()}",
        _transfers(),
        END,
    ]
    return "\n\n".join(map(wrap_section, parts))


def refresh(page: str) -> str:
    """Return a page with the section replaced."""
    before, _, rest = page.partition(BEGIN)
    return before + section() + rest.partition(END)[2]


def _count_equal_winners(rows: Iterable[Row]) -> str:
    found: dict[str, list[bool]] = {}
    for row in rows:
        found.setdefault(row.basis, []).append(row.paper == row.ours)
    return ", ".join(f"{sum(same)} of {len(same)} are the paper's ({basis})" for basis, same in found.items())


def _transfers() -> str:
    """Return a paragraph on exposed transfers."""
    found = {model: hanayo_transfers.exposed_count("chimera", 8, model) for model in get_args(UnitTransferModel)}
    others = ", ".join(f"{found[model]:g} with {model}" for model in found if model != hanayo_transfers.PAPERS_MODEL)
    return (
        f"**Cross-communication.** Figure 3(c) shows 22 T_C on the critical path of Chimera on 8 devices. The transfer model "
        f"{hanayo_transfers.PAPERS_MODEL} gives {found[hanayo_transfers.PAPERS_MODEL]:g} ({others}) and leaves the other drawings of figure 3 unchanged: two "
        "opposite transfers at the same time share the link of their ranks. `transfer.batched` issues a send and a receive "
        "that are next to each other with `batch_isend_irecv`, priced by the model batched: the next actions of both ranks "
        "wait for both transfers, and the two directions do not share a rate."
    )


def _grid(grid: Grid) -> str:
    return markdown_table(
        ("", *grid.columns),
        [(row.what, *("-" if each is None else f"{each:.3g}" for each in row.figures)) for row in grid.rows],
    )


def _basis_table(table: Table, only: str = "") -> str:
    """Return a Markdown table with a row for each claim, and a column for each basis."""
    rows = [row for row in table.rows if only in row.what]
    bases = list(dict.fromkeys(row.basis for row in rows))
    found: dict[str, dict[str, Row]] = {}
    for row in rows:
        found.setdefault(row.what, {})[row.basis] = row
    return markdown_table(("", table.printed, *bases), _basis_rows(found, bases, table))


def _basis_rows(found: dict[str, dict[str, Row]], bases: Sequence[str], table: Table) -> Iterator[Sequence[str]]:
    digits = 1 if table.form == "%" else 2
    for what, rows in found.items():
        first = next(iter(rows.values()))
        cells = [f"{rows[basis].ours:.{digits}f}" if basis in rows else "" for basis in bases]
        marks = ["" if basis not in rows or is_different(rows[basis], table) else " (same)" for basis in bases]
        yield what, f"{first.paper:.{digits}f}", *(cell + mark for cell, mark in zip(cells, marks, strict=True))


if __name__ == "__main__":
    PAGE.write_text(refresh(PAGE.read_text("utf-8")), "utf-8")
