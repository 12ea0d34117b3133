"""Calibration profiles: printed, stored, used by designs, and shown as charts on the page."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from meshwave.designer.views.profiles import describe_machine, profile_charts, profile_entries
from meshwave.engine.costs.profile import load_profile
from meshwave.engine.costs.profile_store import DEFAULT_PROFILE, store_profile
from meshwave.engine.files import example
from tests.engine.costs.profiles import block, contention, example_profile, profile_of_actions
from tests.engine.costs.test_profile import document as collectives
from tests.fuzz.oracle import Act, Complaint, Ended, about_command, about_json, about_text
from tests.fuzz.target import Target

PRICED = ("03-gpt-on-two-cores", "14-tensor-parallel", "17-experts-on-two-cores", "21-u-net")
"""Designs that use the profile: a plain one, with tp, with experts, and with skip connections."""

OVERLAP = {"collective": "overlap", "mp": 4, "esp": 4}


class Profiles(Target):
    """A profile is refused with the place of the mistake, or all results that use it are finite."""

    is_guided = True

    def seeds(self) -> list[bytes]:
        whole = example_profile(blocks=tuple(map(block, ("layer", "experts", "joining", "embedding", "head"))))
        contended = example_profile(contention=(contention(), contention("same_node")))
        run = profile_of_actions(
            {"op": "F"}, {"op": "B", "first": True}, {"op": "I"}, {"op": "W", "tp": 2}, {"op": "STEP"}
        )
        return [
            *(made.to_json().encode() for made in (whole, contended, run)),
            json.dumps(collectives({}, {"collective": "all_gather", "group": "mp", "size": 4}, OVERLAP)).encode(),
        ]

    def calls(self, path: Path) -> Iterator[tuple[str, Act]]:
        ended: list[Ended] = []
        file = str(path)
        yield "calibrate --profile --json", lambda: about_command("calibrate", "--profile", file, "--json", ended=ended)
        if not ended or ended[0].status:
            return
        yield "calibrate --profile", lambda: about_command("calibrate", "--profile", file, ended=ended)
        yield "calibrate --profile --fit", lambda: about_command("calibrate", "--profile", file, "--fit")
        store_profile(load_profile(path), DEFAULT_PROFILE)
        yield "page", lambda: _show_on_page(path)
        for name in PRICED:
            yield f"simulate {name}", partial(price_with_profile, name, path.with_name("priced.json"))


def price_with_profile(name: str, place: Path) -> Iterator[Complaint]:
    document = json.loads(example(name).read_bytes())
    document["cost"] = {"kind": "calibrated", "profile": DEFAULT_PROFILE}
    place.write_text(json.dumps(document))
    ended: list[Ended] = []
    yield from about_command("check", str(place), ended=ended)
    yield from about_command("simulate", str(place), "--json", ended=ended)
    yield from about_command("simulate", str(place))
    if ended[0].status != ended[1].status:
        yield Complaint("check and simulate disagree", f"{ended[0].out.decode()} {ended[1].err}")


def _show_on_page(path: Path) -> Iterator[Complaint]:
    profile = load_profile(path)
    yield from about_json(json.dumps([profile_charts(profile), profile_entries([DEFAULT_PROFILE], "")]))
    if words := describe_machine(profile):
        yield from about_text("\n".join(words))


TARGET = Profiles()
