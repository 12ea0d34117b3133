"""Claims of the Hanayo paper on schedules (Liu et al., SC'23, arXiv:2308.15762), reproduced by simulation."""

from __future__ import annotations

from itertools import pairwise

import pytest

from meshwave.engine.costs import peak_inflight
from meshwave.engine.program.action import Action, Op
from meshwave.engine.schedules import Pipe, schedules
from tests.engine.schedules.play import devices, makespan, program


@pytest.mark.parametrize(
    ("p", "w", "slots"), [(2, 1, 16), (4, 1, 36), (4, 2, 60), (4, 4, 108), (8, 2, 124), (8, 4, 220)]
)
def test_figures_have_the_printed_length(p: int, w: int, slots: float) -> None:
    """Figures 3d, 3e, 6a and 6b: a stage takes one slot forward and two backward."""
    assert makespan("hanayo", p, p, waves=w) == slots


@pytest.mark.parametrize(
    ("name", "options", "share", "slots"),
    [
        ("gpipe", {}, 1, 21.375),
        ("1f1b", {}, 1, 21.625),
        ("hanayo", {"waves": 1}, 2, 38.0),
        ("hanayo", {"waves": 2}, 4, 67.0),
    ],
)
def test_figures_with_transfers_have_the_printed_length(
    name: str, options: dict[str, int], share: int, slots: float
) -> None:
    """Figures 3a, 3b, 3d and 3e: a transfer takes a sixteenth of a device's forward."""
    assert makespan(name, 4, 4, 1.0, 2.0, share / 16, **options) == slots


@pytest.mark.parametrize("p", [2, 3, 4, 8])
def test_every_doubling_of_the_waves_halves_the_bubble(p: int) -> None:
    work = 3 * p
    bubbles = [devices("hanayo", p, p, waves=w).makespan - work for w in (1, 2, 4, 8)]

    assert all(more == pytest.approx(2 * fewer) for more, fewer in pairwise(bubbles))
    assert bubbles[0] == pytest.approx(2 * (p - 1))


@pytest.mark.parametrize(
    ("p", "percent"), [(4, [33.3, 20.0, 11.1, 5.9]), (8, [36.8, 22.6, 12.7, 6.8]), (32, [39.2, 24.4, 13.9, 7.5])]
)
def test_bubble_ratios_of_one_two_four_and_eight_waves(p: int, percent: list[float]) -> None:
    ratios = [devices("hanayo", p, p, waves=w).bubble_ratio for w in (1, 2, 4, 8)]

    assert ratios == pytest.approx([2 * (p - 1) / (3 * p * w + 2 * (p - 1)) for w in (1, 2, 4, 8)])
    assert [round(100 * ratio, 1) for ratio in ratios] == percent


@pytest.mark.parametrize(("p", "gpipe", "chimera"), [(8, 46.67, 33.33), (32, 49.2, 38.46)])
def test_bubble_ratios_of_figure_1(p: int, gpipe: float, chimera: float) -> None:
    """The test covers the bars of the other schedules; the bars of Hanayo are half of the bubble in its figures."""
    assert 100 * devices("gpipe", p, p).bubble_ratio == pytest.approx(gpipe, abs=0.05)
    assert 100 * devices("1f1b", p, p).bubble_ratio == pytest.approx(gpipe, abs=0.05)
    assert 100 * devices("chimera", p, p).bubble_ratio == pytest.approx(chimera, abs=0.05)


@pytest.mark.parametrize("p", [2, 3, 4])
def test_one_wave_is_chimera_on_twice_the_ranks_folded_in_half(p: int) -> None:
    """Figure 5: the up-going microbatches of Chimera are exchanged with the down-going ones of the other half."""
    chimera, wave = schedules["chimera"]().program(Pipe(2 * p, 2 * p)), schedules["hanayo"]().program(Pipe(p, p))

    assert makespan("chimera", 2 * p, 2 * p) == makespan("hanayo", p, p)
    for rank in range(2 * p):
        folded = [Action(op, stage, mb % p) for op, stage, mb, *_ in chimera.actions(rank)]
        assert folded == wave.actions(min(rank, 2 * p - 1 - rank))


def test_more_waves_spread_activations_more_evenly() -> None:
    """Figure 2: from ((2W-1)P+1)/2W shares of the model on the first rank to P on the last; 1F1B is the least even."""
    p = 8
    peaks = {w: peak_inflight(program("hanayo", p, p, waves=w)) for w in (1, 2, 4, 8)}
    spread = [float(peak.max() - peak.min()) for peak in peaks.values()]

    for w, peak in peaks.items():
        assert (peak.min(), peak.max()) == pytest.approx((((2 * w - 1) * p + 1) / (2 * w), p))
    assert all(more < fewer for fewer, more in pairwise(spread))
    for other in ("gpipe", "chimera", "1f1b"):
        peak = peak_inflight(program(other, p, p))
        assert float(peak.max() - peak.min()) <= p - 1
    assert float(peak.max() - peak.min()) > spread[0], "1F1B"


def test_schedules_are_ranked_as_in_the_paper_for_fast_transfers() -> None:
    """GPipe and DAPPLE are equal, then Chimera, then Hanayo with 2, 4 and 8 waves."""
    p, transfer = 8, 1 / 256
    gpipe, dapple, chimera = (devices(name, p, p, transfer).makespan for name in ("gpipe", "1f1b", "chimera"))
    waves = [devices("hanayo", p, p, transfer, waves=w).makespan for w in (2, 4, 8)]

    assert dapple == pytest.approx(gpipe, rel=0.01)
    assert dapple > chimera > waves[0] > waves[1] > waves[2]


@pytest.mark.parametrize(
    ("transfer", "makespans"), [(0.125, [43.0, 39.5, 43.0, 55.25]), (0.01, [38.4, 31.68, 28.74, 28.11])]
)
def test_the_best_number_of_waves_depends_on_the_links(transfer: float, makespans: list[float]) -> None:
    """P = 8: doubling w waves is faster if a transfer is shorter than T_B / 8w^2."""
    found = [devices("hanayo", 8, 8, transfer, waves=w).makespan for w in (1, 2, 4, 8)]

    assert found == pytest.approx(makespans, abs=0.005)
    for w, (fewer, more) in zip((1, 2, 4), pairwise(found), strict=True):
        limit = 2 / (8 * w * w)
        if transfer != limit:
            assert (more < fewer) == (transfer < limit)


@pytest.mark.parametrize(
    ("p", "chimera", "waves"), [(8, 1.25, [1.18, 1.45, 1.64, 1.75]), (4, 1.31, [1.17, 1.40, 1.56, 1.65])]
)
def test_ideal_speed_ups_over_gpipe(p: int, chimera: float, waves: list[float]) -> None:
    gpipe = devices("gpipe", p, p).makespan

    assert gpipe / devices("chimera", p, p).makespan == pytest.approx(chimera, abs=0.006)
    assert [gpipe / devices("hanayo", p, p, waves=w).makespan for w in (1, 2, 4, 8)] == pytest.approx(waves, abs=0.006)


@pytest.mark.parametrize("p", [2, 4, 8])
@pytest.mark.parametrize("w", [1, 2, 4])
@pytest.mark.parametrize(("forward", "backward"), [(1.0, 1.0), (1.0, 2.0), (1.0, 3.0)])
@pytest.mark.parametrize("transfer", [0.0, 0.25, 1.0])
def test_against_interleaving_with_as_many_chunks(
    p: int, w: int, forward: float, backward: float, transfer: float
) -> None:
    """A comparison that is not in the paper: waves lose (P-1)(B-F) and gain on transfers for W > (P-1)/2."""
    wave = makespan("hanayo", p, p, forward, backward, transfer, waves=w)
    loop = makespan("interleaved-1f1b", p, p, forward, backward, transfer, chunks=2 * w)

    assert wave - loop == pytest.approx((p - 1) * (backward - forward) + (2 * (p - 1) - 4 * w) * transfer)


def test_the_last_rank_runs_all_its_forwards_before_its_first_backward() -> None:
    order = [action.op for action in schedules["hanayo"](waves=2).program(Pipe(4, 4)).actions(3)]

    assert order == sorted(order)
    assert order.count(Op.F) == order.count(Op.B) == 16
