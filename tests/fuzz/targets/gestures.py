"""Messages that a browser sends to the widgets of one tab."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

from panel.custom import JSComponent

from meshwave.designer.pages.design_widgets import Widgets
from meshwave.designer.pages.transfer_page import make_lab
from meshwave.designer.state.background_calibration import BackgroundCalibration
from meshwave.designer.state.draft import Draft
from meshwave.designer.state.studio import Studio
from meshwave.engine.document import load_design, parse_design
from meshwave.engine.errors import RunError
from meshwave.engine.files import example, examples
from meshwave.engine.runs.launchers._base import launchers
from meshwave.engine.schedules import auto
from tests.engine.costs.profiles import example_profile
from tests.fuzz.mutate import STRINGS, damage_document
from tests.fuzz.oracle import Act, Complaint, about_exception, about_text
from tests.fuzz.target import Target, UnfitError, envelope

DESIGNS = (
    "01-first-wave",
    "02-two-waves",
    "03-gpt-on-two-cores",
    "04-chimera",
    "07-drawn-by-hand",
    "16-gpt2-moe",
    "19-wave-of-skips",
)
CHIPS = {"chips": [[0, 0]]}
BLOCK = {"layer": 0, "rank": 0, "op": "F", "stage": 0, "microbatch": 0}
EDITS: Sequence[Mapping[str, Any]] = (
    {"kind": "move", "blocks": [[0, 0, 1]], "before": [0, 0, 0]}, {"kind": "move", "blocks": [[0, 0, 1]], "before": None},
    {"kind": "shift", "blocks": [[0, 0, 1], [0, 0, 0]], "by": 2}, {"kind": "repeat", "blocks": [[1, 0, 0]]},
    {"kind": "everywhere", "blocks": [[0, 0, 0], [1, 0, 0]]}, {"kind": "halves", "blocks": [[1, 0, 0]]},
    {"kind": "slot", "blocks": [[0, 0, 1], [1, 0, 0]]},
)  # fmt: skip
PATHS = (
    "name", "cluster", "cluster.nodes", "cluster.devices_per_node", "cluster.device.memory_bytes", "cluster.inter_node.bandwidth",
    "model.kind", "model.layers", "model.heads", "model.moe", "model.moe.experts", "pipeline.schedule", "pipeline.waves",
    "pipeline.microbatches", "pipeline.stages", "pipeline.placement", "pipeline.recompute", "experts.ep", "experts.schedule",
    "experts.placement", "training.optimizer", "training.clip_norm", "training.steps", "cost.kind", "cost.forward", "cost.profile",
    "transfer.strategy",
)  # fmt: skip
VALUES = (
    "2", "3", "0", "-1", "1e9", "1e400", "nan", "80 GB", "x", "", "bert", "u-net", "zb-v", "custom", "auto", "2, 2", "[1, 1]", "0 1\n1 0",
    "unit", "calibrated", True, False, None, 2, 0.5, [1], {"a": 1}, *STRINGS,
)  # fmt: skip

GESTURES: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "cluster": (
        {"type": "draw", "mesh": -1, "devices": [3]}, {"type": "move", "mesh": 0, "devices": [3]},
        {"type": "resize", "mesh": 0, "devices": [0, 1]}, {"type": "delete", "mesh": 1}, {"type": "rename", "mesh": 0, "name": "Z"},
        {"type": "axes", "mesh": 0, "dp": 1, "tp": 1}, {"type": "reorder", "mesh": 0, "rank": 1},
        {"type": "tile", "pp": 2, "dp": 1, "cp": 1, "tp": 1}, {"type": "try_tile", "pp": 2, "dp": 1, "cp": 1, "tp": 2}, {"type": "nodes", "value": 2},
        {"type": "devices_per_node", "value": 4}, {"type": "pane", "pane": "experts"},
    ),
    "wave": (
        {"type": "move_layers", "boundary": 0, "count": 1}, {"type": "try_layers", "boundary": 0, "count": -1}, {"type": "try_layers"},
        {"type": "move_stage", "stage": 0, "mesh": 1, "replica": 0}, {"type": "try_stage", "stage": 1, "mesh": 0, "replica": 0},
        {"type": "balance"}, {"type": "dial", "value": 2}, {"type": "option", "key": "split_backward", "value": "true"},
        {"type": "microbatches", "value": 4}, {"type": "schedule", "name": "zb-h1"}, {"type": "schedule", "name": "hanayo"},
        {"type": "search", "do": "stop"}, {"type": "search", "do": "again"},
    ),
    "experts": (
        {"type": "add"}, {"type": "mesh", "mesh": 1}, {"type": "setting", "key": "ep", "value": 2},
        {"type": "setting", "key": "schedule", "value": "parm-s1"}, {"type": "setting", "key": "load", "value": "zipf"},
        {"type": "move", **CHIPS, "to": 1}, {"type": "replicate", **CHIPS, "to": 1}, {"type": "replicate", **CHIPS}, {"type": "remove", **CHIPS},
        {"type": "balance", "extra": 1}, {"type": "blocks"}, {"type": "heat", **CHIPS, "factor": 2.0},
        {"type": "try", "number": 1, **CHIPS, "to": 1, "copy": False}, {"type": "compare"}, {"type": "pane", "pane": "cluster"},
    ),
    "topbar": (
        {"type": "rename", "name": "new"}, {"type": "open", "files": [{"file": "x.json", "text": "{}"}]},
        {"type": "open", "files": [{"file": "x.csv", "text": "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1"}]}, {"type": "example", "name": "04-chimera"},
        {"type": "save"}, {"type": "save_as", "name": "other"}, {"type": "export", "name": "svg"}, {"type": "export", "name": "torch-csv"},
        {"type": "undo"}, {"type": "redo"}, {"type": "pin"}, {"type": "launch"}, {"type": "compare"}, {"type": "experts"},
    ),
    "timeline": (
        {"type": "pin", **BLOCK}, {"type": "open", **BLOCK}, {"type": "open", **BLOCK, "op": "SEND_F"}, {"type": "back"}, {"type": "unpin"},
        {"type": "ask", "ask": 1, "what": "area", "layer": 0, "start": 0.0, "end": 1e-3, "ranks": [0, 1]},
        {"type": "ask", "ask": 2, "what": "idle", "layer": 0, "rank": 0, "at": 1e-3},
        {"type": "ask", "ask": 3, "what": "path", "layer": 0}, {"type": "ask", "ask": 4, "what": "what_if", "layer": 0, "faster": 0.2},
        {"type": "ask", "ask": 5, "what": "find", "layer": 0, "text": "stage 1 mb 2 B"},
        {"type": "ask", "ask": 6, "what": "limit", **BLOCK, "other": -1, "start": 0.0, "end": 1.0},
        {"type": "order", "do": "turn", "number": 1, "on": True}, {"type": "order", "do": "differences", "on": True},
        {"type": "order", "do": "repair", "number": 4},
        *({"type": "order", "do": do, "number": 2, "edit": edit} for edit in EDITS for do in ("preview", "commit")),
    ),
    "form": (
        {"type": "open_profiles"},
        *({"type": "change", "path": path, "value": "2"} for path in PATHS),
    ),
    "gallery": ({"type": "choose", "key": "gpipe"}, {"type": "pin", "key": "gpipe"}, {"type": "close", "opening": 1}),
    "comparison": (
        {"type": "unpin", "place": 0}, {"type": "pin"}, {"type": "end"}, {"type": "example", "name": "05-hanayo-as-chimera"},
        {"type": "file", "text": "{}"}, {"type": "close"},
    ),
    "expert_schedules": ({"type": "choose", "name": "parm-s2"}, {"type": "close", "opening": 0}),
    "together": (
        {"type": "share"}, {"type": "enter", "member": "0123456789ab", "name": "Ada"}, {"type": "drawn", "revision": 1},
        {"type": "rename", "name": "Grace"}, {"type": "restore", "number": 0}, {"type": "dismiss", "number": 0}, {"type": "end_sharing"},
    ),
    "comments": (
        {"type": "refresh"}, {"type": "add", "text": "why?", "target": {"kind": "mesh", "name": "A", "rank": -1}},
        {"type": "add", "text": "why?", "target": {"kind": "block", "name": "0F0", "rank": 0}},
        {"type": "resolve", "comment": "0123456789ab", "on": True}, {"type": "delete", "comment": "0123456789ab"},
    ),
    "numbers": ({"type": "pin"}, {"type": "compare"}, {"type": "end"}),
    "problems": ({"type": "focus", "where": "model.layers"}, {"type": "stop"}, {"type": "use"}),
    "profiles": (
        {"type": "look", "name": "this-machine.json"}, {"type": "use"}, {"type": "measure", "name": "mine"}, {"type": "stop"},
        {"type": "close", "opening": 1},
    ),
    "runs": (
        {"type": "open", "run": "20260101-000000-abcd"}, {"type": "overlay", "on": True}, {"type": "use_measured"},
        {"type": "bring_text", "name": "a.txt", "text": "Call me Ishmael."}, {"type": "default_text"}, {"type": "weights", "name": ""}, {"type": "hosts", "on": True},
    ),
    "bar": ({"type": "launch", "key": "a"}, {"type": "rehearse", "key": "b"}, {"type": "cancel"}),
    "tabs": ({"type": "turn", "to": 1},),
    "lab": (
        {"type": "place", "side": "source", "axis": 0, "dim": 1, "at": 0}, {"type": "place", "side": "destination", "axis": 1, "dim": None, "at": 0},
        {"type": "set", "path": "tensor.shape", "text": "8 x 6"}, {"type": "set", "path": "source.ranks", "text": "0-3"},
        {"type": "set", "path": "destination.hosts", "text": "2 a host, from 2"}, {"type": "set", "path": "chunks", "text": "best"},
        {"type": "set", "path": "links.intra_node.bandwidth", "text": "free"}, {"type": "choose", "strategy": "hierarchical", "ordering": "dfs"},
        {"type": "look", "shows": "simulated"}, {"type": "undo"}, {"type": "redo"}, {"type": "save"},
        {"type": "open", "file": "t.json", "text": "{}"}, {"type": "case", "name": "uneven"}, {"type": "link", "fragment": "t=e30"},
        {"type": "hops", "number": 1, "task": 0}, {"type": "take"},
    ),
    "crossings": ({"type": "take"}, {"type": "close", "opening": 0}),
}  # fmt: skip
"""Messages that the JavaScript of each widget sends."""

INSIDE = "internal error in Meshwave"
"""Text that the page shows for an internal error, which is reported by its exception."""


class Gestures(Target):
    """A sequence of messages to the widgets of one tab: each is answered without an internal error."""

    def seeds(self) -> list[bytes]:
        every = [[widget, message] for widget, messages in GESTURES.items() for message in messages]
        texts = [_upload(name) for name in examples() if name in DESIGNS]
        return [_input(design, [gesture]) for design in DESIGNS for gesture in (*every, *texts)]

    def mutate(self, chance: Random, seeds: Sequence[bytes]) -> bytes:
        drawn = [json.loads(chance.choice(seeds))["messages"][0] for _ in range(chance.choice((2, 4, 8, 16)))]
        for gesture in drawn:
            if gesture[1]["type"] == "change" and chance.random() < 0.7:
                gesture[1]["value"] = chance.choice(VALUES)
            elif chance.random() < 0.6:
                gesture[1] = damage_document(chance, gesture[1], chance.choice(drawn)[1])
        return _input(chance.choice(DESIGNS), drawn)

    def calls(self, path: Path) -> Iterator[tuple[str, Act]]:
        with envelope():
            given = json.loads(path.read_bytes())
            design, messages = (
                str(given["design"]),
                [(str(widget), dict(message)) for widget, message in given["messages"]],
            )
        if design not in DESIGNS or not {widget for widget, _ in messages} <= GESTURES.keys():
            raise UnfitError
        _keep_a_profile()
        with tab(design) as page:
            for widget, message in messages:
                yield f"{widget} {_kind(message)}", partial(page.answer, widget, message)
            yield "end", page.end


def _input(design: str, messages: Sequence[Any]) -> bytes:
    return json.dumps({"design": design, "messages": messages}).encode()


def _upload(name: str) -> list[Any]:
    return ["topbar", {"type": "open", "files": [{"file": "x.json", "text": example(name).read_text()}]}]


def _kind(message: Mapping[str, Any]) -> str:
    words = [message.get(key) for key in ("type", "do", "what")]
    return " ".join(word for word in words if isinstance(word, str) and word.replace("_", "").isalpha())


def _keep_a_profile() -> None:
    folder = Path(os.environ["MESHWAVE_HOME"], "profiles")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "this-machine.json").write_text(example_profile().to_json())


# ---- a tab that nobody sees ----


class Tab:
    """The widgets of a session, and the messages that they send."""

    def __init__(self, design: str) -> None:
        self._studio = Studio(load_design(example(design)))
        draft = Draft(self._studio, "", lambda: True)
        self._session = draft.session
        self._widgets = Widgets(self._session, self._studio, tab=draft)
        self._lab = make_lab()
        self._wrong: list[Any] = []  # exceptions that were caught and told as a defect
        self.sent: list[Mapping[str, Any]] = []

    def _widget(self, name: str) -> Any:
        others = {
            "tabs": self._widgets.side.tabs,
            "bar": self._widgets.runs.bar,
            "comments": self._widgets.view("comments").pane,
            "lab": self._lab,
            "crossings": self._widgets.boundary_transfers.view,
        }
        return others.get(name) or getattr(self._widgets, name)

    def answer(self, widget: str, message: Mapping[str, Any]) -> Iterator[Complaint]:
        """Send a message; check the response, and that the design is still valid."""
        self.sent.clear()
        with patch("traceback.print_exc", lambda: self._wrong.append(sys.exception())):
            self._widget(widget)._handle_msg(message)
        while self._wrong:
            yield about_exception(self._wrong.pop())
        for sent in self.sent:
            if sent.get("type") != "download" and INSIDE not in str(sent):
                yield from _about_words(sent)
        design = self._session.design
        if parse_design(design.to_json(), draft=True) != design:
            yield Complaint("a saved design is another one", design.to_json())

    def end(self) -> Iterator[Complaint]:
        """Close the tab."""
        self._widgets.stop_jobs()
        self._lab.stop_jobs()
        self._studio.close()
        return iter(())


def _about_words(sent: Mapping[str, Any]) -> Iterator[Complaint]:
    shown = [sent.get(key) for key in ("refused", "words", "title", "fault", "label")]
    shown += [line.get(key) for line in sent.get("lines", ()) for key in ("where", "message")]
    for words in shown:
        if isinstance(words, str) and words.strip():
            yield from about_text(words)


@contextmanager
def tab(design: str) -> Iterator[Tab]:
    """Open a tab that cannot launch or measure anything, has short searches, and sends no messages."""

    def refuse(*_: Any, **__: Any) -> None:
        raise RunError("nothing is launched or measured from here")

    with ExitStack() as stack:
        for member in launchers.values():
            for method in ("submit", "warm"):
                stack.enter_context(patch.object(member, method, refuse if method == "submit" else lambda _: None))
        stack.enter_context(patch.object(BackgroundCalibration, "start", refuse))
        stack.enter_context(patch.multiple(auto, GREEDY_TASKS=1, MAX_MOVES=20))
        made = Tab(design)
        stack.enter_context(patch.object(JSComponent, "_send_msg", lambda _, message: made.sent.append(message)))
        yield made


TARGET = Gestures()
