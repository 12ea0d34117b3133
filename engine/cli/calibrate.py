"""``meshwave calibrate``: measure this machine, keep what came of it, and print it."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from meshwave.engine.costs.contention import ROWS, describe_contention
from meshwave.engine.costs.profile import Pair, Phase, Precision, Profile, Term, load_profile
from meshwave.engine.costs.profile_store import keep, named, put_aside, save_profile, see_keepable
from meshwave.engine.errors import InputError, nearest
from meshwave.engine.files import see_writable
from meshwave.engine.runtime.calibration.collectives import SIZES
from meshwave.engine.runtime.calibration.emulated_cluster import Cluster
from meshwave.engine.runtime.calibration.machine_profile import (
    ALL_REDUCED,
    PARTS,
    Told,
    Wanted,
    calibrate_machine,
    gpus,
    on_gpus,
)
from meshwave.engine.units import quantity, speed


def to_text(profile: Profile) -> str:
    """A line a kind of block, the optimizer, a link and a collective: what it costs, and how well the line fits."""
    machine = profile.machine
    lines = [", ".join(filter(None, (machine.device, machine.network, machine.software)))]
    if profile.machine.run:
        lines.append(f"what was measured by {profile.machine.run}: {len(profile.actions)} actions")
    for rate in profile.matrix:
        lines.append(f"large products of {rate.precision}: {quantity(rate.flops, 'FLOP/s')}")
    for part in (_block_lines, _other_lines, _collective_lines, _contention_lines):
        found = part(profile)
        lines += found if len(found) > 1 else []
    return "\n".join(lines)


UNITS: Mapping[Term, str] = {"products": "FLOP/s", "attention": "FLOP/s", "bytes": "B/s"}


def _block_lines(profile: Profile) -> list[str]:
    lines = [
        f"{'block':<10}{'':<6}{'phase':<16}{'at all':>9}{'products':>14}{'attention':>14}{'bytes':>10}{'r2':>9}  worst residual"
    ]
    for block in profile.blocks:
        for phase in get_args(Phase):
            per, residuals = block.fits[phase].per, block.residuals(phase)
            speeds = [speed(per.get(term, 0.0), unit, "-") for term, unit in UNITS.items()]
            once = quantity(per.get("action", 0.0) + per.get("block", 0.0), "s")
            worst = max(residuals, key=abs, default=0.0)
            lines.append(
                f"{block.kind:<10}{block.precision:<6}{phase:<16}{once:>9}{speeds[0]:>14}{speeds[1]:>14}{speeds[2]:>10}"
                f"{block.fits[phase].r2:>9.4f}  {worst:+.0%} of {len(residuals)} sizes"
            )
    return lines


def _other_lines(profile: Profile) -> list[str]:
    lines = [f"{'also':<32}{'alpha':>10}{'1 / beta':>18}{'r2':>9}"]
    for each in profile.optimizer:
        words = f"{each.optimizer} {each.precision}{', clipped' if each.clipped else ''}"
        rate = speed(each.s_per_parameter, "parameters/s")
        lines.append(f"{words:<32}{quantity(each.alpha_s, 's'):>10}{rate:>18}{each.r2:>9.4f}")
    for link in profile.links:
        rate = speed(link.beta_s_per_byte, "B/s")
        words = PAIRS[link.pair]
        lines.append(f"{words:<32}{quantity(link.alpha_s, 's'):>10}{rate:>18}{link.r2:>9.4f}")
    for kept in profile.memory:
        lines.append(
            f"{f'kept by a block: {kept.kind} {kept.precision}':<32}{kept.ratio:>10.3f} of what the formulas say"
        )
    return lines


PAIRS: Mapping[Pair, str] = {
    "same_device": "a copy on the device",
    "same_node": "a message inside the node",
    "across_nodes": "a message between nodes",
}


def _collective_lines(profile: Profile) -> list[str]:
    lines = [f"{'collective':<16}{'group':<8}{'ranks':>5}{'alpha':>10}{'1 / beta':>13}{'r2':>9}  worst residual"]
    for each in profile.collectives:
        layout = f" (mp {each.mp}, esp {each.esp})" if each.mp and each.esp else ""
        worst = max(each.residuals, key=abs)
        rate = speed(each.beta_s_per_byte, "B/s")
        size = quantity(each.samples[[*each.residuals].index(worst)][0], "B")
        lines.append(
            f"{each.collective:<16}{each.group:<8}{each.size:>5}{quantity(each.alpha_s, 's'):>10}{rate:>13}"
            f"{each.r2:>9.4f}  {worst:+.0%} at {size}{layout}"
        )
    return lines


def _contention_lines(profile: Profile) -> list[str]:
    lines = ["contention"]
    for each in profile.contention:
        repetitions = len(each.alone_samples_s)
        lines.append(f"{PAIRS[each.pair]} (median of {repetitions} repetition{'s' * (repetitions != 1)})")
        rows = zip(ROWS, describe_contention(each), strict=True)
        lines += [f"  {name:<34}{words or 'not measured: too few processes'}" for name, words in rows]
    return lines


def cluster_of(ranks: int, ranks_per_node: int | None, shaped: str | None) -> Cluster:
    """The cluster that the command's options ask for.

    Raises:
        InputError: it cannot be.
    """
    rates = _rates(shaped) if shaped else None
    per_node = ranks_per_node or (max(1, ranks // 2) if rates else ranks)
    if per_node < 1 or ranks < 1 or ranks % per_node:
        raise InputError(f"{ranks} ranks cannot be {per_node} on each node; use a divisor")
    return Cluster(ranks // per_node, per_node, *(rates or ()))


def _rates(text: str) -> tuple[float, float]:
    try:
        intra, inter = map(float, text.split(","))
    except ValueError:
        raise InputError(f"--shaped takes two rates in bytes/s, such as 250e6,50e6, not {text!r}") from None
    return intra, inter


def integers(text: str, option: str) -> list[int]:
    """The numbers of an option such as ``--mp 2,4``.

    Raises:
        InputError: it has others.
    """
    try:
        found = [int(word) for word in text.split(",")]
    except ValueError:
        found = []
    if not found or min(found) < 1:
        raise InputError(f"--{option} takes whole numbers above 0, such as 2,4, not {text!r}")
    return found


def command(options: Any) -> int:
    """``meshwave calibrate``; returns the exit status.

    Raises:
        InputError: the options ask for what cannot be measured here, or the profile could not be written.
        RunError: a process failed.
    """
    profile = load_profile(options.profile) if options.profile else _measured(options)
    try:
        print(_written(profile, options), end="", file=sys.stderr)
    except InputError as error:  # the disk was filled meanwhile: what took minutes is not thrown away
        spare = put_aside(profile)
        print(f"{error}; what was measured is {f'in {spare}' if spare else 'printed'}", file=sys.stderr)
        print(to_text(profile) if spare else profile.to_json())
        return 2
    if options.fit:
        mp, esp = _layouts(options, profile.machine.ranks_per_node)[0]
        print(json.dumps(profile.fit(mp, esp), indent=2))
    elif options.json:
        print(profile.to_json(), end="")
    else:
        print(to_text(profile))
    return 0


def _measured(options: Any) -> Profile:
    """Measure this machine, once it is clear that what comes of it can be written."""
    asked = wanted(options)
    if options.out:
        see_writable(options.out)
    else:
        see_keepable(options.name)
    return calibrate_machine(asked, _Said())


def _written(profile: Profile, options: Any) -> str:
    """Write a profile where it is to be, and say where that is.

    Raises:
        InputError: it cannot be written.
    """
    if options.out:
        save_profile(profile, options.out)
        return f"wrote {options.out}\n"
    if options.profile:
        return ""
    name = keep(profile, options.name).name
    return f'kept as {name}; designs use it by cost: {{"kind": "calibrated", "profile": "{name}"}}\n'


class _Said:
    """Prints how far a calibration is, each thing once."""

    words = ""

    def __call__(self, told: Told) -> None:
        if told.words != self.words:
            self.words = told.words
            print(f"{told.share:4.0%} {told.words}", file=sys.stderr, flush=True)


def wanted(options: Any) -> Wanted:
    """What the command's options ask for.

    Raises:
        InputError: it cannot be.
    """
    cluster = on_gpus(cluster_of(options.ranks, options.ranks_per_node, options.shaped))
    parts = ["collectives"] if options.fit and not options.parts else _words(options.parts, "parts", PARTS) or PARTS
    if cluster.ranks < 2 and {*parts} - {"blocks"}:
        raise InputError("one process has nobody to talk to; use 2 ranks or more, or --parts blocks")
    if options.rounds < 1:
        raise InputError(f"--rounds {options.rounds} cannot be; use 1 or more")
    if options.seconds <= 0:
        raise InputError(f"--seconds {options.seconds:g} cannot be; use more")
    named(options.name)  # is refused before anything is measured
    is_given = bool(options.mp or options.esp or options.sizes)
    return Wanted(
        cluster,
        _layouts(options, cluster.ranks_per_node),
        parts,
        integers(options.sizes, "sizes") if options.sizes else SIZES,
        options.rounds,
        _words(options.precision, "precision", get_args(Precision)),
        options.experts,
        on_gpu=gpus() > 0,
        seconds=options.seconds,
        all_reduced=() if is_given else ALL_REDUCED,
    )


def _words(text: str | None, option: str, known: Sequence[str]) -> list[str] | None:
    """The words of an option such as ``--parts blocks,links``; none where it is not given."""
    if text is None:
        return None
    found = text.split(",")
    wrong = next((word for word in found if word not in known), None)
    if wrong is not None:
        raise InputError(f"--{option} cannot be {wrong!r}. {nearest(wrong, known)}")
    return found


def _layouts(options: Any, ranks_per_node: int) -> list[tuple[int, int]]:
    """Every ``mp`` with every ``esp`` of the options; by default both are a node."""
    given = {"mp": options.mp, "esp": options.esp}
    mps, esps = (integers(text, name) if text else [ranks_per_node] for name, text in given.items())
    return [(mp, esp) for mp in mps for esp in esps]
