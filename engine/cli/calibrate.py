"""``meshwave calibrate``: measure this machine and save the costs as a profile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from importlib.util import find_spec
from typing import Any, get_args

from meshwave.engine.cli.output import print_json, print_note
from meshwave.engine.costs.contention import ROWS, describe_contention
from meshwave.engine.costs.profile import Pair, Phase, Precision, Profile, Term, is_exact, load_profile
from meshwave.engine.costs.profile_store import (
    DEFAULT_PROFILE,
    check_can_extend,
    check_can_store,
    extend_stored_profile,
    profile_file_name,
    save_profile,
    store_profile,
    write_spare_profile,
)
from meshwave.engine.errors import InputError, unknown_word_hint
from meshwave.engine.files import check_writable
from meshwave.engine.findings import Refusal
from meshwave.engine.messages import render
from meshwave.engine.runs import Record
from meshwave.engine.runs.target_calibration import calibrate_target
from meshwave.engine.runs.targets import open_target
from meshwave.engine.runtime.calibration.collective_plan import COLLECTIVE_BYTES
from meshwave.engine.runtime.calibration.emulated_cluster import ProcessCluster
from meshwave.engine.runtime.calibration.machine_profile import (
    ALL_REDUCE_RANKS,
    PARTS,
    CalibrationOptions,
    CalibrationProgress,
    calibrate_machine,
    count_gpus,
    describe_machine,
    gpu_cluster,
)
from meshwave.engine.units import format_count, format_rate, percent_change, quantity


def to_text(profile: Profile) -> str:
    """Format the costs of each kind of block, optimizer, link and collective, with the quality of their fits."""
    machine = profile.machine
    lines = [", ".join(filter(None, (machine.device, machine.network, machine.software)))]
    if profile.machine.run:
        lines.append(f"measured by {profile.machine.run}: {len(profile.actions)} actions")
    for rate in profile.matrix:
        lines.append(f"large matrix products in {rate.precision}: {quantity(rate.flops, 'FLOP/s')}")
    for part in (_block_lines, _other_lines, _collective_lines, _contention_lines):
        found = part(profile)
        lines += found if len(found) > 1 else []
    return "\n".join(lines)


UNITS: Mapping[Term, str] = {"products": "FLOP/s", "attention": "FLOP/s", "bytes": "B/s"}


def _block_lines(profile: Profile) -> list[str]:
    lines = [
        f"{'block':<10}{'':<6}{'phase':<16}{'fixed':>9}{'products':>14}{'attention':>14}{'bytes':>10}{'r2':>9}  worst residual"
    ]
    for block in profile.blocks:
        for phase in get_args(Phase):
            per, residuals = block.fits[phase].per, block.residuals(phase)
            speeds = [format_rate(per.get(term, 0.0), unit, "-") for term, unit in UNITS.items()]
            fixed = quantity(per.get("action", 0.0) + per.get("block", 0.0), "s")
            exact = is_exact(block.points(phase), per.values())
            worst = "-" if exact else percent_change(max(residuals, key=abs))
            lines.append(
                f"{block.kind:<10}{block.precision:<6}{phase:<16}{fixed:>9}{speeds[0]:>14}{speeds[1]:>14}{speeds[2]:>10}"
                f"{_r2_text(exact, block.fits[phase].r2):>9}  {worst} of {format_count(len(residuals), 'size')}"
            )
    return lines


def _other_lines(profile: Profile) -> list[str]:
    lines = [f"{'other':<32}{'alpha':>10}{'1 / beta':>18}{'r2':>9}"]
    for each in profile.optimizer:
        name = f"{each.optimizer} {each.precision}{', clipped' if each.clipped else ''}"
        rate = format_rate(each.s_per_parameter, "parameters/s")
        exact = is_exact({size for size, _ in each.samples}, (each.alpha_s, each.s_per_parameter))
        lines.append(f"{name:<32}{quantity(each.alpha_s, 's'):>10}{rate:>18}{_r2_text(exact, each.r2):>9}")
    for link in profile.links:
        rate = format_rate(link.beta_s_per_byte, "B/s")
        exact = is_exact({size for size, _ in link.samples}, (link.alpha_s, link.beta_s_per_byte))
        lines.append(f"{PAIRS[link.pair]:<32}{quantity(link.alpha_s, 's'):>10}{rate:>18}{_r2_text(exact, link.r2):>9}")
    for kept in profile.memory:
        lines.append(f"{f'memory of a block: {kept.kind} {kept.precision}':<32}{kept.ratio:>10.3f} of the formulas")
    return lines


def _r2_text(is_exact: bool, r2: float) -> str:
    return "-" if is_exact else f"{r2:.4f}"


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
        rate = format_rate(each.beta_s_per_byte, "B/s")
        exact = is_exact({size for size, _ in each.samples}, (each.alpha_s, each.beta_s_per_byte))
        size = quantity(each.samples[[*each.residuals].index(worst)][0], "B")
        lines.append(
            f"{each.collective:<16}{each.group:<8}{each.size:>5}{quantity(each.alpha_s, 's'):>10}{rate:>13}"
            f"{_r2_text(exact, each.r2):>9}  {'-' if exact else f'{percent_change(worst)} at {size}'}{layout}"
        )
    return lines


def _contention_lines(profile: Profile) -> list[str]:
    lines = ["contention"]
    for each in profile.contention:
        repetitions = len(each.alone_samples_s)
        lines.append(f"{PAIRS[each.pair]} (median of {repetitions} repetition{'s' * (repetitions != 1)})")
        rows = zip(ROWS, describe_contention(each), strict=True)
        lines += [f"  {name:<34}{text or 'not measured: too few processes'}" for name, text in rows]
    return lines


def cluster_to_measure(ranks: int, ranks_per_node: int | None, shaped: str | None) -> ProcessCluster:
    """Return the cluster of processes that the options request.

    Raises:
        Refusal: the ranks cannot be divided into nodes, or the rates cannot be read.
    """
    rates = _parse_rates(shaped) if shaped else None
    per_node = ranks_per_node or (max(1, ranks // 2) if rates else ranks)
    if per_node < 1 or ranks < 1 or ranks % per_node:
        raise Refusal("indivisible_ranks", {"ranks": ranks, "per_node": per_node}, "--ranks-per-node")
    return ProcessCluster(ranks // per_node, per_node, *(rates or ()))


def _parse_rates(text: str) -> tuple[float, float]:
    try:
        intra, inter = map(float, text.split(","))
    except ValueError:
        raise Refusal("not_two_rates", {"value": text}, "--shaped") from None
    return intra, inter


def _parse_integers(text: str, option: str) -> list[int]:
    """Return the integers of an option such as ``--mp 2,4``.

    Raises:
        Refusal: a value is not an integer above 0.
    """
    try:
        found = [int(word) for word in text.split(",")]
    except ValueError:
        found = []
    if not found or min(found) < 1:
        raise Refusal("not_whole_numbers", {"value": text}, f"--{option}")
    return found


def calibrate(options: Any) -> int:
    """Measure this machine, save the profile and print it; return the exit status.

    Raises:
        InputError: this machine cannot measure what the options request, or the profile cannot be written.
        RunError: a process failed.
    """
    profile = _measure_profile(options) if options.profile is None else load_profile(options.profile)
    try:
        print_note(_save_profile(profile, options), end="")
    except InputError as error:  # the disk became full: keep the measurements, which took minutes
        spare = write_spare_profile(profile)
        place = f"saved to {spare}" if spare else "printed"
        print_note(render("profile_not_written", {"reason": str(error), "place": place}))
        print(to_text(profile) if spare else profile.to_json())
        return 2
    if options.fit:
        mp, esp = _choose_layouts(options, profile.machine.ranks_per_node)[0]
        print_json(profile.fit(mp, esp))
    elif options.json:
        print(profile.to_json(), end="")
    else:
        print(to_text(profile))
    return 0


def _measure_profile(options: Any) -> Profile:
    """Measure this machine, after checking that the profile can be written."""
    measurements = wanted_measurements(options)
    if options.out:
        check_writable(options.out)
    else:
        check_can_store(_profile_name(options))
        if _is_partial(options) and not options.on and find_spec("torch"):
            check_can_extend(_profile_name(options), describe_machine(measurements.cluster))
    return _measure_target(options) if options.on else calibrate_machine(measurements, _PrintedProgress())


def _measure_target(options: Any) -> Profile:
    """Measure a launch target; its nodes determine the number of processes.

    Raises:
        Refusal: an option applies to this machine only.
    """
    for name in ("shaped", "mp", "esp", "sizes", "ranks_per_node"):
        if getattr(options, name):
            raise Refusal("option_of_machine", {}, f"--{name.replace('_', '-')}")
    plan = {
        "parts": _parse_words(options.parts, "parts", PARTS) or PARTS,
        "precisions": _parse_words(options.precision, "precision", get_args(Precision)),
        "has_experts": options.experts,
        "rounds": options.rounds,
        "blocks_s": options.seconds,
    }
    print_note(f"a job on {options.on} measures one of its nodes; that takes minutes")
    with closing(Record()) as record, closing(open_target(record, options.on)) as launcher:
        return calibrate_target(launcher, plan)


def _profile_name(options: Any) -> str:
    return options.name or (f"{options.on}.json" if options.on else DEFAULT_PROFILE)


def _is_partial(options: Any) -> bool:
    """Return True if the options request some parts or precisions, which are added to a stored profile of the same name."""
    parts = _parse_words(options.parts, "parts", PARTS)
    has_all_parts = set(parts) == set(PARTS) if parts else not options.fit
    return not has_all_parts or options.precision is not None


def _save_profile(profile: Profile, options: Any) -> str:
    """Save a profile, and return a line with its location.

    Raises:
        InputError: the profile cannot be written.
    """
    if options.out:
        save_profile(profile, options.out)
        return f"wrote {options.out}\n"
    if options.profile is not None:
        return ""
    name = _profile_name(options)
    name = store_profile(extend_stored_profile(name, profile) if _is_partial(options) else profile, name).name
    return f'saved as {name}; use it in a design with cost: {{"kind": "calibrated", "profile": "{name}"}}\n'


class _PrintedProgress:
    """Progress output of a calibration, which prints each stage once."""

    _stage = ""

    def __call__(self, progress: CalibrationProgress) -> None:
        if progress.message != self._stage:
            self._stage = progress.message
            print_note(f"{progress.share:4.0%} {progress.message}")


def wanted_measurements(options: Any) -> CalibrationOptions:
    """Return the measurements that the options request.

    Raises:
        Refusal: an option is out of range or unknown.
    """
    cluster = gpu_cluster(cluster_to_measure(options.ranks, options.ranks_per_node, options.shaped))
    parts = (
        ["collectives"] if options.fit and not options.parts else _parse_words(options.parts, "parts", PARTS) or PARTS
    )
    if cluster.ranks < 2 and {*parts} - {"blocks"}:
        raise Refusal("single_rank", {}, "--ranks")
    if options.rounds < 1:
        raise Refusal("too_few_rounds", {"rounds": options.rounds}, "--rounds")
    if not options.seconds > 0:  # also if it is not a number
        raise Refusal("too_few_seconds", {"seconds": options.seconds}, "--seconds")
    profile_file_name(_profile_name(options))  # check before measuring
    is_given = bool(options.mp or options.esp or options.sizes)
    return CalibrationOptions(
        cluster,
        _choose_layouts(options, cluster.ranks_per_node),
        parts,
        _parse_integers(options.sizes, "sizes") if options.sizes else COLLECTIVE_BYTES,
        options.rounds,
        _parse_words(options.precision, "precision", get_args(Precision)),
        options.experts,
        uses_gpu=count_gpus() > 0,
        blocks_s=options.seconds,
        all_reduce_ranks=() if is_given else ALL_REDUCE_RANKS,
    )


def _parse_words(text: str | None, option: str, known: Sequence[str]) -> list[str] | None:
    """Return the words of an option such as ``--parts blocks,links``; None if the option is not given."""
    if text is None:
        return None
    found = text.split(",")
    wrong = next((word for word in found if word not in known), None)
    if wrong is not None:
        raise Refusal("unknown_word", {"word": wrong, "hint": unknown_word_hint(wrong, known)}, f"--{option}")
    return found


def _choose_layouts(options: Any, ranks_per_node: int) -> list[tuple[int, int]]:
    """Return all combinations of ``mp`` and ``esp`` in the options; by default both are the size of a node."""
    given = {"mp": options.mp, "esp": options.esp}
    mps, esps = (_parse_integers(text, name) if text else [ranks_per_node] for name, text in given.items())
    return [(mp, esp) for mp in mps for esp in esps]
