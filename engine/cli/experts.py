"""``meshwave moe``: comparison of the schedules of an expert layer."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from meshwave.engine.cli.output import print_result, read_input
from meshwave.engine.findings import Refusal
from meshwave.engine.units import percent, quantity


def compare_expert_schedules(options: argparse.Namespace) -> int:
    """Print a comparison of the schedules of an expert layer, given as a design or as an expert-layer document."""
    from meshwave.engine.document import parse_design
    from meshwave.engine.document.expert_layer_document import parse_expert_layer
    from meshwave.engine.predict.expert_comparison import design_expert_layer_json, expert_layer_json, find_expert_mesh

    content, is_design = read_input(options.layer)
    if is_design:
        design = parse_design(content)
        found = design_expert_layer_json(design, find_expert_mesh(design, options.mesh))
    elif options.mesh is not None:
        raise Refusal("mesh_of_expert_layer")
    else:
        found = expert_layer_json(parse_expert_layer(content))
    return print_result(options, found, to_text)


# ---- as text ----


def to_text(found: Mapping[str, Any]) -> list[str]:
    """Format the result of :func:`meshwave.engine.predict.expert_comparison.expert_layer_json` as lines of text."""
    has_design = "layer" in found
    lines = [_design_line(found)] if has_design else []
    lines += [
        f"capacity {found['capacity']:,} slots per expert; X = {quantity(found['input_bytes'], 'B')}, "
        f"D = {quantity(found['slots_bytes'], 'B')}",
        "",
        f"{'schedule':<20}{'forward':>10}{'backward':>10}{'inside':>10}{'between':>10}{'compute':>13}{'parameters':>12}"
        f"{'whole' if has_design else '':>10}".rstrip(),
    ]
    for name, each in found["schedules"].items():
        inside, between = (sum(c[key] for c in each["forward"]) for key in ("intra_bytes", "inter_bytes"))
        cells = (
            quantity(each["communication_s"]["forward"], "s"),
            quantity(each["communication_s"]["backward"], "s"),
            quantity(inside, "B"),
            quantity(between, "B"),
        )
        flops, parameters = quantity(each["flops"], "FLOP"), quantity(each["parameters"], "")
        lines.append(
            f"{name:<20}{''.join(f'{cell:>10}' for cell in cells)}{flops:>13}{parameters:>12}{_whole_time(each)}"
        )
    for name, each in found["schedules"].items():
        if each["runs"] == name:
            lines += ["", f"{name}: {each['title']}", *_collective_lines(each)]
    dropped = {name: each["dropped"] for name, each in found["schedules"].items() if each["runs"] == name}
    lines += ["", *_dropped_line(dropped), f"parm-auto chooses {found['choice']}. {found['reason']}"]
    lines += [f"auto chooses {found['auto']['choice']}: {found['auto']['reason']}"]
    lines += [f"{name} cannot run this layer: {reason}" for name, reason in found["refused"].items()]
    return lines + [f"note: {note}" for note in found["notes"]]


def _design_line(found: Mapping[str, Any]) -> str:
    layer = found["layer"]
    return (
        f"a layer of {found['design']} on mesh {found['mesh']}: {layer['experts']} experts of {layer['hidden']} x "
        f"{layer['ffn_hidden']}, top {layer['top_k']}; {layer['tokens']:,} tokens; {layer['devices']} devices, "
        f"mp {layer['mp']}, ep {layer['ep']} x esp {layer['esp']}; the design runs {found['schedule']}"
    )


def _whole_time(each: Mapping[str, Any]) -> str:
    return f"{quantity(sum(each['seconds'].values()), 's'):>10}" if "seconds" in each else ""


def _dropped_line(parts: Mapping[str, float]) -> Iterator[str]:
    """Yield a line on the share of dropped token assignments, and on the schedules whose share differs from most."""
    shares = {name: percent(part) for name, part in parts.items()}
    usual, _ = Counter(shares.values()).most_common(1)[0]
    others = "".join(f"; {part} under {name}" for name, part in shares.items() if part != usual)
    if any(parts.values()):
        yield f"dropped: {usual} of token assignments at this load, if tokens choose independently{others}"


def _collective_lines(each: Mapping[str, Any]) -> Iterator[str]:
    for direction in ("forward", "backward"):
        for number, c in enumerate(each[direction]):
            group = f"{c['group']} of {c['group_size']}"
            sent = f"sends {quantity(c['intra_bytes'], 'B')} inside, {quantity(c['inter_bytes'], 'B')} between"
            hidden = " more, during the exchange" if c["hidden"] else ""
            yield (
                f"  {direction if not number else '':<10}{c['name']:<16}{group:<14}"
                f"buffer {quantity(c['buffer_bytes'], 'B'):<10}{sent:<40}{quantity(c['time_s'], 's')}{hidden}"
            )
        if not each[direction]:
            yield f"  {direction:<10}nothing is sent"
