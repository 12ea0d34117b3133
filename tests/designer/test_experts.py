"""Experts on devices: edits by gestures, the data that is drawn, and descriptions of drops."""

from __future__ import annotations

from typing import Any

import pytest

from meshwave.designer.canvases.expert_metrics import LayerCosts
from meshwave.designer.canvases.experts import ExpertsCanvas, experts_picture
from meshwave.designer.forms import form_sections, make_edit
from meshwave.designer.state import expert_edits as edits
from meshwave.designer.state.design_session import Session
from meshwave.designer.views.expert_schedules import ExpertSchedules, schedule_card, schedule_cards
from meshwave.engine.document import Design, load_design, parse_design
from meshwave.engine.experts import dropped_token_share, expert_schedule_names
from meshwave.engine.files import example
from meshwave.engine.predict.prediction import predict
from meshwave.engine.units import quantity
from tests._findings import refusal

PLACES = [[place] for place in range(4)]
PLACEMENT = ((0, 1), (2, 3), (4, 5), (6, 7))


def design(dp: int = 4, tp: int = 1, experts: int = 8, **section: Any) -> Design:
    """One mesh over two nodes, with experts."""
    document = load_design(example("01-first-wave")).model_dump(mode="json")
    devices = dp * tp
    document["cluster"] |= {"nodes": 2, "devices_per_node": devices // 2}
    document["meshes"] = [{"name": "A", "devices": list(range(devices)), "axes": {"dp": dp, "tp": tp}}]
    document["pipeline"] = {"schedule": "1f1b", "microbatches": 4}
    document["model"]["moe"] = {"experts": experts}
    document["experts"] = {"schedule": "parm-auto", "ep": 4, **section}
    return parse_design(document, draft=True)


class Opened:
    """A canvas on a session, with gestures by name and the last response."""

    def __init__(self, opened: Design) -> None:
        self.session = Session(opened)
        self.canvas = ExpertsCanvas(self.session.edit)
        self.told: list[dict[str, Any]] = []
        self.canvas._send_msg = self.told.append  # type: ignore[method-assign, assignment]
        self.session.param.watch(lambda *_: self.canvas.show(self.session.design), "design")
        self.canvas.show(opened)

    def send_gesture(self, name: str, **gesture: Any) -> str | None:
        """Send a gesture; return the reason if it is refused."""
        self.canvas._handle_msg({"type": name, **gesture})
        refused: str | None = self.told[-1]["refused"]
        return refused

    @property
    def placement(self) -> list[list[int]]:
        return [place["held"] for place in self.canvas.picture["places"]]


# plain functions


def test_several_experts_move_in_one_edit() -> None:
    assert edits.move_experts(PLACEMENT, [(0, 0), (3, 1)], 2, PLACES) == ((1,), (2,), (0, 3, 4, 5), (6, 7))


def test_a_drop_on_the_same_place_changes_nothing() -> None:
    assert edits.move_experts(PLACEMENT, [(0, 0)], 0, PLACES) == PLACEMENT


def test_a_place_holds_an_expert_at_most_once() -> None:
    twice = ((0, 1), (0, 2), (3,), ())
    moved = refusal(lambda: edits.move_experts(twice, [(0, 0)], 1, PLACES))
    assert (moved.code, moved.params) == ("expert_held_already", {"devices": [1], "expert": 0})
    replica = refusal(lambda: edits.replicate_experts(twice, [0], 1, PLACES))
    assert (replica.code, replica.params) == ("replica_without_effect", {"devices": [1], "expert": 0})


def test_the_last_replica_cannot_be_removed() -> None:
    twice = ((0, 1), (0, 2), (3,), ())
    assert edits.remove_replicas(twice, [(0, 1)], PLACES) == ((0, 1), (2,), (3,), ())
    last = refusal(lambda: edits.remove_replicas(twice, [(1, 0)], PLACES))
    assert (last.code, last.params) == ("last_replica", {"devices": [0], "expert": 1})
    assert refusal(lambda: edits.remove_replicas(twice, [(0, 0), (0, 1)], PLACES)).code == "last_replica"


def test_an_expert_that_a_place_does_not_hold_is_refused() -> None:
    other = refusal(lambda: edits.move_experts(PLACEMENT, [(7, 0)], 2, PLACES))
    assert (other.code, other.params) == ("expert_not_held", {"devices": [0], "expert": 7})
    unknown = refusal(lambda: edits.move_experts(PLACEMENT, [(0, 9)], 2, PLACES))
    assert (unknown.code, unknown.params) == ("unknown_expert_place", {"place": 9, "last": 3})


def test_a_replica_is_placed_on_a_node_without_one_and_there_on_the_least_loaded_place() -> None:
    placement = edits.place_replicas(PLACEMENT, [0], load=[2.0, 0.1, 1.2, 0.7], nodes=[0, 0, 1, 1])
    assert placement == ((0, 1), (2, 3), (4, 5), (0, 6, 7))
    placement = edits.place_replicas(placement, [0], load=[1.0, 0.5, 1.2, 0.7], nodes=[0, 0, 1, 1])
    assert placement == ((0, 1), (0, 2, 3), (4, 5), (0, 6, 7))
    assert refusal(lambda: edits.place_replicas(((0,),), [0], [1.0], [0])).code == "expert_everywhere"


def test_loads_are_scaled_in_even_shares() -> None:
    assert edits.scale_loads([0.5, 0.25, 0.25], [1, 1], 2.0) == [1.5, 1.5, 0.75]


# sections


def test_added_experts_fit_the_meshes() -> None:
    bare = design().model_copy(update={"model": design().model.model_copy(update={"moe": None})})
    session = Session(bare)

    session.edit("", edits.add_experts(bare), "add experts to the model")

    assert session.design.model.moe.experts == 8
    assert session.design.experts.ep == 4
    assert [problem for problem in session.errors if problem.where.startswith("experts")] == []
    session.undo()
    assert session.design.model.moe is None


def test_group_sizes_are_adjusted_to_each_other() -> None:
    section = edits.change_setting(design(), "esp", 2)
    assert (section["ep"], section["esp"]) == (2, 2)
    section = edits.change_setting(design(ep=2, esp=2), "ep", 4)
    assert (section["ep"], section["esp"]) == (4, 1)


def test_a_placement_that_no_longer_fits_is_reset_to_equal_blocks() -> None:
    drawn = design(placement=[[0, 1, 2], [3], [4, 5], [6, 7]])
    assert edits.placement_fits(drawn)
    assert edits.change_setting(drawn, "degree", 2)["placement"] is not None
    assert edits.change_setting(drawn, "ep", 2)["placement"] is None
    session = Session(drawn)
    session.edit("experts.ep", 2, "ep 2")
    assert session.design.experts.placement is None
    session.undo()
    session.edit("model.moe.experts", 12, "12 experts")
    assert session.design.experts.placement is None


def test_equal_blocks_are_stored_as_null() -> None:
    opened = design()
    assert edits.placement_setting(edits.drawn_layer(opened, 0), PLACEMENT) is None


def test_devices_that_share_experts_get_the_same_placement() -> None:
    opened = Opened(design(ep=2, esp=2))

    assert opened.send_gesture("move", chips=[[0, 0]], to=1) is None

    assert opened.session.design.experts.placement == ((1, 2, 3), (1, 2, 3), (0, 4, 5, 6, 7), (0, 4, 5, 6, 7))
    assert opened.canvas.picture["places"][1]["name"] == "devices 2-3"


# gestures


def test_every_gesture_is_one_labelled_undo_step() -> None:
    opened = Opened(design(load="zipf"))
    before = opened.session.design
    for gesture, words in (
        (("move", {"chips": [[0, 0]], "to": 3}), "move expert 0 to device 3"),
        (("replicate", {"chips": [[0, 3], [1, 0]], "to": 2}), "replicate experts 0, 1 on device 2"),
        (("remove", {"chips": [[0, 2]]}), "remove a replica of expert 0"),
        (("balance", {"extra": 1}), "balance experts, up to 1 replica per device"),
        (("blocks", {}), "place the experts in equal blocks"),
        (("heat", {"chips": [[3, 1]], "factor": 1.5}), "increase the load of expert 3"),
        (("setting", {"key": "schedule", "value": "parm-s2"}), "experts: schedule Parm S2"),
        (("setting", {"key": "degree", "value": None}), "experts: degree automatic"),
    ):
        name, what = gesture
        assert opened.send_gesture(name, **what) is None
        assert opened.session.history[0] == words
    for _ in range(8):
        opened.session.undo()
    assert opened.session.design == before


def test_balancing_reduces_the_largest_load_or_reports_that_it_cannot() -> None:
    opened = Opened(design(load="zipf"))
    before = max(float(place["load"][:-1]) for place in opened.canvas.picture["places"])

    assert opened.send_gesture("balance", extra=1) is None

    assert max(float(place["load"][:-1]) for place in opened.canvas.picture["places"]) < before / 1.4
    assert opened.send_gesture("balance", extra=1) is not None


def test_a_layer_has_a_placement_and_a_load_of_its_own() -> None:
    opened = Opened(design(load="zipf"))
    number = opened.session.design.model.expert_blocks[-1]
    common = opened.canvas.picture["places"]

    assert opened.send_gesture("setting", key="layer", value=str(number)) is None
    assert opened.session.history == ("", "")
    assert opened.send_gesture("move", chips=[[0, 0]], to=3) is None
    assert opened.session.history[0] == f"move expert 0 to device 3 in layer {number}"
    assert opened.send_gesture("setting", key="load", value="uniform") is None

    (own,) = opened.session.design.experts.layers
    assert (own.layer, own.load) == (number, "uniform")
    assert opened.session.design.experts.placement is None
    assert opened.canvas.picture["places"] != common
    (layer,) = (control for control in opened.canvas.picture["controls"] if control["key"] == "layer")
    assert (layer["value"], layer["options"][-1]["text"]) == (str(number), f"{number} (own)")
    assert opened.send_gesture("setting", key="layer", value="-1") is None
    assert opened.canvas.picture["places"] == common
    opened.session.undo()
    opened.session.undo()
    assert opened.session.design.experts.layers == ()


def test_a_trial_describes_the_effect_of_a_drop_and_edits_nothing() -> None:
    opened = Opened(design(load="zipf"))

    opened.canvas._handle_msg({"type": "try", "number": 7, "chips": [[0, 0]], "to": 3, "copy": False})

    told = opened.told[0]
    assert (told["type"], told["number"], told["refused"]) == ("tried", 7, None)
    assert "load" in told["words"] and "→" in told["words"]
    assert opened.session.history == ("", "")


def test_ppmoe_has_places_of_its_own_whose_replicas_share_the_tokens() -> None:
    opened = Opened(design(dp=2, tp=4, schedule="ppmoe"))

    assert [place["devices"] for place in opened.canvas.picture["places"]] == [[0], [1], [2], [3]]
    assert opened.send_gesture("move", chips=[[0, 0]], to=2) is None
    assert opened.send_gesture("replicate", chips=[[3, 1]], to=0) is None
    assert opened.placement == [[1, 3], [2, 3], [0, 4, 5], [6, 7]]
    assert [place["load"] for place in opened.canvas.picture["places"]] == ["0.75×", "0.75×", "1.5×", "1×"]


def test_the_canvas_and_the_form_describe_unused_settings_alike() -> None:
    opened = design(dp=2, tp=4, schedule="ppmoe")
    reason = "PPMoE places whole experts on the 4 devices of a tensor-parallel group and does not use ep and esp"
    found = {control["key"]: control for control in experts_picture(opened, 0)["controls"]}
    shown = {field["path"]: field for section in form_sections(opened) for field in section["fields"]}

    for key in ("ep", "esp"):
        assert found[key]["reason"] == reason and found[key]["options"] == []
        assert (
            shown[f"experts.{key}"]["hint"] == "not used by this schedule" and reason in shown[f"experts.{key}"]["help"]
        )
        assert refusal(lambda key=key: make_edit(opened, shown[f"experts.{key}"], "2")).code == "unused_groups"
        assert make_edit(opened, shown[f"experts.{key}"], "1")[1][key] == 1  # what a problem may ask for
    back = edits.change_setting(opened, "schedule", "parm-auto")
    assert (back["ep"], back["esp"]) == (opened.experts.ep, opened.experts.esp)


def test_devices_show_their_share_of_the_load() -> None:
    picture = experts_picture(design(load="zipf"), 0)
    parts = [float(place["share"][:-1]) for place in picture["places"]]
    assert sum(parts) == pytest.approx(100, abs=0.2)
    bars = [place["bar"] for place in picture["places"]]
    assert max(bars) == 1.0  # the fullest has the longest, and an even share its tick
    assert bars[0] / picture["even"] == pytest.approx(parts[0] / 25, rel=0.01)
    even = experts_picture(design(), 0)
    assert {place["bar"] for place in even["places"]} == {even["even"]} == {0.5}


def test_the_chips_of_a_device_add_up_to_its_load() -> None:
    placement = [[0, 1], [0, 2, 3], [4, 5], [0, 6, 7]]
    picture = experts_picture(design(load="zipf", placement=placement), 0)

    for place in picture["places"]:
        assert sum(float(chip["share"][:-1]) for chip in place["chips"]) == pytest.approx(
            float(place["share"][:-1]), abs=0.2
        )
    copies = [place["chips"][0] for place in (picture["places"][at] for at in (0, 1, 3))]
    whole = next(place for place in experts_picture(design(load="zipf"), 0)["places"] if 0 in place["held"])["chips"][0]
    assert sorted(float(chip["share"][:-1]) for chip in copies) == [9.2, 9.2, 18.4]  # one of them serves another place
    assert all(chip["level"] < whole["level"] for chip in copies if chip["share"] == "9.2%")
    assert whole["share"] == "36.8%" and whole["size"] == 1.0
    assert max(chip["size"] for place in picture["places"] for chip in place["chips"]) == 1.0
    assert copies[0]["words"] == (
        "replica of expert 0: 9.2% of token assignments, 0.736× an even share; its 3 replicas together "
        "receive 36.8% (2.94× an even share)"
    )


def test_devices_that_share_an_expert_show_it() -> None:
    opened = Opened(design(dp=4, tp=2, ep=4, esp=2))
    refused = opened.send_gesture("replicate", chips=[[0, 0]], to=0)
    assert str(refused).startswith("devices 0 and 1 hold expert 0 already")
    assert "devices 2 and 3 do not hold expert 0" in str(opened.send_gesture("remove", chips=[[0, 1]]))


def test_terms_of_the_papers_are_explained_with_the_numbers_of_the_layer() -> None:
    opened = design(dp=4, tp=2, ep=4, esp=2)
    layer, terms = edits.drawn_layer(opened, 0), experts_picture(opened, 0)["terms"]
    assert f"8 experts × {layer.capacity} slots" in terms["D"] and quantity(layer.slots_bytes, "B") in terms["D"]
    assert quantity(layer.input_bytes, "B") in terms["X"]
    assert "capacity factor" in terms["slots"].lower()


def test_a_layer_that_cannot_run_shows_the_reason_and_keeps_its_controls() -> None:
    picture = experts_picture(design(dp=8, experts=8, schedule="expert-parallel", ep=4, esp=2), 0)

    assert "set esp to 1" in picture["problem"]
    assert picture["figures"] == []
    assert [control["key"] for control in picture["controls"]] == ["layer", "schedule", "ep", "esp", "degree", "load"]


def test_groups_that_do_not_divide_a_mesh_are_refused_with_a_fix() -> None:
    opened = Opened(design(dp=6, ep=4))
    picture = opened.canvas.picture
    assert (picture["state"], picture["fixes"]) == ("unfit", ["set ep to 2 and esp to 1"])

    assert opened.send_gesture("fix", fix="set ep to 2 and esp to 1") is None

    assert (opened.session.design.experts.ep, opened.canvas.picture["state"]) == (2, "ready")
    assert opened.session.history[0] == "set ep to 2 and esp to 1"


def test_a_load_of_the_wrong_length_is_refused_and_another_can_be_chosen() -> None:
    opened = Opened(design(load=[1.0, 2.0, 3.0]))

    assert opened.canvas.picture["state"] == "unfit"
    assert opened.canvas.picture["reason"].startswith("the load has 3 shares for 8 experts")
    assert {entry["reason"] for entry in schedule_cards(opened.session.design, 0)} == {
        f"{opened.canvas.picture['reason']}."
    }
    assert opened.send_gesture("setting", key="load", value="zipf") is None
    assert opened.canvas.picture["state"] == "ready"


def test_uneven_numbers_of_experts_per_place_are_placed_by_hand() -> None:
    opened = Opened(design(experts=6))
    assert "ep=4 does not divide 6 experts" in opened.canvas.picture["problem"]

    assert opened.send_gesture("balance", extra=0) is None

    assert [len(held) for held in opened.placement] == [2, 2, 1, 1]
    assert opened.canvas.picture["problem"] == ""
    assert opened.canvas.picture["figures"]


def test_groups_are_listed_by_devices_of_the_cluster() -> None:
    groups = experts_picture(design(dp=4, tp=2, ep=4, esp=2), 0)["groups"]

    assert groups["mp"] == groups["esp"] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert groups["ep"] == [[0, 2, 4, 6], [1, 3, 5, 7]]


def test_figures_equal_those_of_the_prices() -> None:
    figures = {row["key"]: row["value"] for row in experts_picture(design(), 0)["figures"]}

    # D = E T M b = 8 x ceil(1.25 x 2 x tokens / 8) slots; 3 of 4 devices are others, 2 of them on the other node,
    # and slots go there and back
    layer = edits.drawn_layer(design(), 0)
    assert figures["inter"] == quantity(2 * 4 * layer.slots_bytes * 2 / 4, "B")
    assert figures["intra"] == quantity(2 * 4 * layer.slots_bytes * 1 / 4, "B")
    assert figures["load"] == "1×"
    assert figures["dropped"] == f"{100 * dropped_token_share('parm-s1', layer):.1f}%"


def test_the_dropped_share_is_shown_if_there_is_a_capacity() -> None:
    document = design(load="zipf").model_dump(mode="json")
    (numbers,) = predict(parse_design(document, draft=True)).numbers["dropped"]
    shown = {row["key"]: row["value"] for row in experts_picture(design(load="zipf"), 0)["figures"]}
    assert shown["dropped"] == f"{100 * numbers:.1f}%"
    document["model"]["moe"]["capacity_factor"] = None
    assert "dropped" not in {row["key"] for row in experts_picture(parse_design(document, draft=True), 0)["figures"]}


def test_without_experts_the_canvas_offers_to_add_some() -> None:
    bare = design().model_copy(update={"model": design().model.model_copy(update={"moe": None})})
    assert experts_picture(bare, 0) == {
        "state": "none",
        "offer": "8 experts in every second block, distributed over 4 devices of each mesh",
    }


# the schedules side by side


def test_every_schedule_has_a_card_with_the_fastest_first_and_refusals_last() -> None:
    found = schedule_cards(design(dp=4, tp=2, ep=4, esp=2, load="zipf"), 0)

    assert {entry["name"] for entry in found} == set(expert_schedule_names())
    times = [entry["total"] for entry in found if not entry["reason"]]
    assert times == sorted(times)
    assert [entry["name"] for entry in found if entry["present"]] == ["parm-auto"]
    assert next(entry for entry in found if entry["name"] == "parm-auto")["choice"].startswith("S")
    automatic = next(entry for entry in found if entry["name"] == "auto")["choice"]
    assert "PPMoE is excluded" in automatic and "ppmoe" not in automatic  # schedules are called by their titles
    assert next(entry for entry in found if entry["name"] == "expert-parallel")["layout"] == "ep 8, esp 1"


def test_a_card_has_the_time_and_the_spans_of_its_layer() -> None:
    opened = design(dp=4, tp=2, ep=4, esp=2, schedule="parm-s1")
    found = schedule_card(opened, 0, "parm-s1")

    known = LayerCosts.compute(opened, 0, edits.drawn_layer(opened, 0))
    assert found["total"] == pytest.approx(known.forward_s + known.backward_s)
    assert max(found["picture"]["end"]) == pytest.approx(found["total"])
    assert {"experts", "dispatch", "combine", "gather"} <= set(found["picture"]["kind"])


def test_a_schedule_that_cannot_run_the_layer_shows_the_reason() -> None:
    found = schedule_card(design(dp=4, tp=3, experts=8, ep=4, esp=1), 0, "ppmoe")
    assert found["reason"].startswith("PPMoE cannot distribute 8 experts evenly over 3 tensor-parallel devices")


def test_choosing_a_schedule_is_one_edit() -> None:
    session = Session(design(dp=4, tp=2, ep=4, esp=2))
    view = ExpertSchedules(session)
    view._send_msg = lambda message: None  # type: ignore[method-assign, assignment]
    view.open()

    view._handle_msg({"type": "choose", "name": "expert-parallel"})

    assert not view.shown
    assert (session.design.experts.ep, session.design.experts.esp) == (8, 1)
    assert session.history[0] == "experts: schedule Expert parallel"
    session.undo()
    assert (session.design.experts.schedule, session.design.experts.ep) == ("parm-auto", 4)


def test_the_effects_of_an_uneven_load_are_explained() -> None:
    """With a capacity, empty slots are computed, too."""
    assert experts_picture(design(), 0)["about"] == []
    padded = experts_picture(design(load="zipf"), 0)["about"]
    assert padded == [
        "Every expert computes 40 slots, including empty ones: the load changes the dropped tokens, not the time."
    ]
    document = design(load="zipf").model_dump(mode="json")
    document["model"]["moe"]["capacity_factor"] = None
    (dropless,) = experts_picture(parse_design(document, draft=True), 0)["about"]
    assert dropless.startswith(
        "Experts compute only the tokens that they receive, so the most loaded device determines the time"
    )
    grouped = experts_picture(design(dp=8, ep=4), 0)["about"]
    assert grouped == ["One of 2 identical groups."]


@pytest.mark.parametrize(
    "gesture", [{"key": 0}, {"key": "ep", "value": "two"}, {"key": "ep", "value": 0}, {"key": "schedule", "value": "x"}]
)
def test_a_setting_that_the_page_does_not_offer_is_refused(gesture: dict[str, Any]) -> None:
    opened = Opened(design())

    refused = opened.send_gesture("setting", **gesture)

    assert refused is not None and "inside Meshwave" not in refused
