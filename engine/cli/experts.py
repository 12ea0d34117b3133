"""The command line: ``meshwave check | program | simulate | run | runs | compare | import | export | ...``."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from meshwave.engine.errors import InputError
from meshwave.engine.units import percent, quantity

if TYPE_CHECKING:
    pass
from meshwave.engine.cli.output import _looked_into, _print


def _moe(options: argparse.Namespace) -> int:
    from meshwave.engine.document import parse_design
    from meshwave.engine.document.expert_layer_document import parse_expert_layer
    from meshwave.engine.predict.expert_comparison import design_expert_answer, expert_layer_answer, find_expert_mesh

    content, is_design = _looked_into(options.layer)
    if is_design:
        design = parse_design(content)
        found = design_expert_answer(design, find_expert_mesh(design, options.mesh))
    elif options.mesh is not None:
        raise InputError("--mesh is one of a design; a layer alone lies on the ranks that it says itself")
    else:
        found = expert_layer_answer(parse_expert_layer(content))
    return _print(options, found, to_text)


# ---- as text ----


def to_text(found: Mapping[str, Any]) -> list[str]:
    """The lines in which a terminal shows an :func:`expert_layer_answer`."""
    of_design = "layer" in found
    lines = [_of_design(found)] if of_design else []
    lines += [
        f"capacity {found['capacity']:,} slots an expert; X = {quantity(found['input_bytes'], 'B')}, "
        f"D = {quantity(found['slots_bytes'], 'B')}",
        "",
        f"{'schedule':<20}{'forward':>10}{'backward':>10}{'inside':>10}{'between':>10}{'compute':>13}{'parameters':>12}"
        f"{'whole' if of_design else '':>10}".rstrip(),
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
            f"{name:<20}{''.join(f'{cell:>10}' for cell in cells)}{flops:>13}{parameters:>12}{_whole_of(each)}"
        )
    for name, each in found["schedules"].items():
        if each["runs"] == name:
            lines += ["", f"{name}: {each['title']}", *_told(each)]
    lost = {name: each["dropped"] for name, each in found["schedules"].items() if each["runs"] == name}
    lines += ["", *_lost(lost), f"parm-auto chooses {found['choice']}. {found['reason']}"]
    lines += [f"auto chooses {found['auto']['choice']}: {found['auto']['reason']}"]
    lines += [f"{name} cannot run it: {reason}" for name, reason in found["refused"].items()]
    return lines + [f"note: {note}" for note in found["notes"]]


def _of_design(found: Mapping[str, Any]) -> str:
    layer = found["layer"]
    return (
        f"a layer of {found['design']} on mesh {found['mesh']}: {layer['experts']} experts of {layer['hidden']} x "
        f"{layer['ffn_hidden']}, top {layer['top_k']}; {layer['tokens']:,} tokens; {layer['devices']} devices, "
        f"mp {layer['mp']}, ep {layer['ep']} x esp {layer['esp']}; the design runs {found['schedule']}"
    )


def _whole_of(each: Mapping[str, Any]) -> str:
    return f"{quantity(sum(each['seconds'].values()), 's'):>10}" if "seconds" in each else ""


def _lost(parts: Mapping[str, float]) -> Iterator[str]:
    """What is dropped under most schedules, and under those whose gates see more or fewer tokens."""
    told = {name: percent(part) for name, part in parts.items()}
    usual, _ = Counter(told.values()).most_common(1)[0]
    others = "".join(f"; {part} under {name}" for name, part in told.items() if part != usual)
    if any(parts.values()):
        yield f"dropped: {usual} of visits at this load, where tokens choose apart from each other{others}"


def _told(each: Mapping[str, Any]) -> Iterator[str]:
    for direction in ("forward", "backward"):
        for number, c in enumerate(each[direction]):
            group = f"{c['group']} of {c['group_size']}"
            sent = f"sends {quantity(c['intra_bytes'], 'B')} inside, {quantity(c['inter_bytes'], 'B')} between"
            hidden = " more, under the exchange" if c["hidden"] else ""
            yield (
                f"  {direction if not number else '':<10}{c['name']:<16}{group:<14}"
                f"buffer {quantity(c['buffer_bytes'], 'B'):<10}{sent:<40}{quantity(c['time_s'], 's')}{hidden}"
            )
        if not each[direction]:
            yield f"  {direction:<10}nothing is sent"
