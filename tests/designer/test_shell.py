"""The widgets around the canvases without a browser: the form's fields, the tiles, the files, the problems."""

from __future__ import annotations

import json
from typing import Any

import pytest

from meshwave.designer.forms import (
    Field,
    Form,
    find_field,
    form_sections,
    format_number,
    key_label,
    make_edit,
    problems_by_path,
    read_input,
)
from meshwave.designer.forms.values import input_text
from meshwave.designer.kit.shortcuts import SHORTCUTS
from meshwave.designer.state.design_edits import fix_edit
from meshwave.designer.state.design_session import Session
from meshwave.designer.state.file_jobs import LARGEST_FILE_BYTES, file_name, read_upload
from meshwave.designer.views.numbers import (
    STEP_METRICS,
    Numbers,
    describe_staleness,
    metric_change,
    metric_tiles,
    strip_tiles,
)
from meshwave.designer.views.problems import Problems, problem_entries
from meshwave.designer.views.topbar import TopBar, example_entries
from meshwave.engine.amounts import parse_amount
from meshwave.engine.document import Design, load_design, parse_design
from meshwave.engine.errors import InputError
from meshwave.engine.exports import exports
from meshwave.engine.files import example, examples
from meshwave.engine.findings import DesignError, Problem, set_value
from meshwave.engine.imports import is_import
from meshwave.engine.predict.prediction import predict
from meshwave.engine.schedules import schedules
from meshwave.engine.units import quantity
from tests._findings import refusal


@pytest.fixture
def design() -> Design:
    return load_design(example("02-two-waves"))


@pytest.fixture
def seconds() -> Design:
    """A design with roofline costs."""
    return load_design(example("10-bert-on-tacc"))


@pytest.fixture
def session(design: Design) -> Session:
    return Session(design)


def by_path(design: Design) -> dict[str, Field]:
    return {field["path"]: field for section in form_sections(design) for field in section["fields"]}


# ---- the form is read off the document ----


@pytest.mark.parametrize("name", examples())
def test_the_form_of_every_example_has_the_values_of_the_document(name: str) -> None:
    design = load_design(example(name))
    document = design.model_dump(mode="json")

    for path, field in by_path(design).items():
        if path in ("cluster", "cluster.device"):  # choices of a preset and of a data sheet, not values
            continue
        here: Any = document
        for key in path.split("."):
            here = here[key]
        is_part = field["kind"] == "switch" and field["optional"]  # that is there or not
        assert field["value"] == (here is not None if is_part else here), path
        assert field["label"], path
        assert field["help"], path
        if field["kind"] not in ("choice", "switch"):
            assert read_input(field, field["text"]) == here, f"{path} does not read back what it shows"


def test_the_form_shows_used_fields_and_hides_others(design: Design) -> None:
    keys = [section["key"] for section in form_sections(design)]

    assert keys == ["model", "experts", "training", "pipeline", "transfer", "cluster", "cost"]


@pytest.mark.parametrize("name", schedules)
def test_a_schedule_has_its_own_options(name: str, design: Design) -> None:
    chosen = Session(design)
    chosen.edit("pipeline.microbatches", 8, "as many as the most demanding of them needs")
    chosen.edit(*make_edit(chosen.design, by_path(chosen.design)["pipeline.schedule"], name))

    own = {path.removeprefix("pipeline.") for path in by_path(chosen.design) if path.startswith("pipeline.")}

    options = {option for option, field in schedules[name].model_fields.items() if option != "replicas"}  # always two
    assert options <= own
    assert ("actions" in own) == (name == "custom")


def test_choosing_custom_starts_from_the_current_order(session: Session) -> None:
    before = session.prediction.numbers["makespan_s"]

    session.edit(*make_edit(session.design, by_path(session.design)["pipeline.schedule"], "custom"))

    assert not session.errors
    assert session.prediction.numbers["makespan_s"] == before


def test_the_meaning_of_null_is_shown_under_an_empty_field(design: Design) -> None:
    field = by_path(design)["model.ffn"]

    assert (field["placeholder"], field["hint"]) == ("auto", "four times hidden")
    assert "null" not in field["help"]


def test_large_and_small_numbers_are_also_shown_with_prefixes(design: Design) -> None:
    form = by_path(design)

    assert form["cluster.device.memory_bytes"]["text"] == "4 GB"
    assert form["cluster.intra_node.latency_s"]["text"] == "100 µs"
    assert form["cluster.intra_node.bandwidth"]["unit"] == "B/s"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (8e10, "80e9"),
        (3.12e14, "312e12"),
        (5e-6, "5e-6"),
        (0.0003, "0.0003"),
        (50257, "50257"),
        (0.0, "0"),
        (1 / 3, repr(1 / 3)),
    ],
)
def test_a_formatted_number_is_parsed_to_the_same_number(value: float, text: str) -> None:
    assert format_number(value) == text
    assert float(text) == value


def test_keys_become_readable_labels() -> None:
    assert [key_label(name) for name in ("micro_batch_size", "nics_per_node", "lr", "ffn")] == [
        "Micro batch size", "NICs per node", "Learning rate", "FFN width",
    ]  # fmt: skip


# ---- an input becomes one edit ----


@pytest.mark.parametrize(
    ("path", "typed", "edit"),
    [
        ("pipeline.microbatches", "16", ("pipeline.microbatches", 16, "microbatches 16")),
        ("pipeline.microbatches", "1e3", ("pipeline.microbatches", 1000, "microbatches 1000")),
        ("training.lr", " 3e-4 ", ("training.lr", 3e-4, "learning rate 0.0003")),
        ("training.clip_norm", "", ("training.clip_norm", None, "clip norm auto")),
        ("cluster.device.memory_bytes", "80e9", ("cluster.device.memory_bytes", 80e9, "device memory 80 GB")),
        ("cluster.device.memory_bytes", "80 GB", ("cluster.device.memory_bytes", 80e9, "device memory 80 GB")),
        (
            "cluster.inter_node.bandwidth",
            "100 Gbit/s",
            ("cluster.inter_node.bandwidth", 12.5e9, "inter node bandwidth 12.5 GB/s"),
        ),
        (
            "cluster.inter_node.latency_s",
            "50 us",
            ("cluster.inter_node.latency_s", 5e-5, "inter node latency 50 µs"),
        ),
        ("pipeline.stages", "1, 2 1;1", ("pipeline.stages", [1, 2, 1, 1], "layers per stage 1, 2, 1, 1")),
        ("training.optimizer", "sgd", ("training.optimizer", "sgd", "optimizer SGD")),
        ("training.data", "notes.txt", ("training.data", "notes.txt", "training text notes.txt")),
    ],
)
def test_an_input_becomes_one_edit(path: str, typed: Any, edit: Any, design: Design) -> None:
    assert make_edit(design, by_path(design)[path], typed) == edit


@pytest.mark.parametrize(
    ("path", "typed", "code"),
    [
        ("cluster.device.memory_bytes", "80 GB/s", "not_an_amount"),
        ("cluster.intra_node.bandwidth", "300 Gb/s", "bits_or_bytes"),
        ("training.weight_decay", "3 k", "number_with_prefix"),
        ("training.lr", "fast", "not_a_number"),
        ("training.lr", "", "missing_number"),
        ("training.lr", "nan", "number_too_large"),
        ("model.layers", "2.5", "fractional_number"),
        ("model.layers", "1e40", "number_too_large"),
        ("training.optimizer", "lion", "unknown_choice"),
    ],
)
def test_an_invalid_input_is_refused(path: str, typed: Any, code: str, design: Design) -> None:
    assert refusal(lambda: make_edit(design, by_path(design)[path], typed)).code == code


def test_another_cost_model_keeps_the_shared_keys(design: Design) -> None:
    session = Session(design)

    session.edit(*make_edit(design, by_path(design)["cost.kind"], "roofline"))

    assert session.design.cost.kind == "roofline"
    assert not session.errors


def test_a_pasted_table_of_costs_per_stage_is_priced_and_shown_again(seconds: Design) -> None:
    session = Session(seconds)
    rows = [f"{stage}\t{0.01 * (1 + stage)}\t0.02\t0.01" for stage in range(seconds.stages)]

    session.edit(*make_edit(seconds, by_path(seconds)["cost.stage_costs"], "\n".join(rows)))

    field, priced = by_path(session.design)["cost.stage_costs"], session.prediction
    assert not session.errors
    assert priced is not None
    first = priced.program.tables.forward[:, 0]
    assert priced.costs.seconds[first] == pytest.approx([0.01 * (1 + stage) for stage in range(seconds.stages)])
    assert field["text"].splitlines()[:2] == ["stage\tforward\tinput\tweight", "0\t0.01\t0.02\t0.01"]
    assert read_input(field, field["text"]) == field["value"]
    assert session.history[0] == f"costs per stage of {seconds.stages} stages"


def test_costs_per_stage_follow_a_change_of_the_stages(session: Session) -> None:
    given = {name: [1.0] * session.design.stages for name in ("forward", "input", "weight")}
    session.edit("cost.stage_costs", given, "costs per stage")

    session.edit("pipeline.waves", 1, "waves 1")

    costs = session.design.cost.stage_costs
    assert costs is not None
    assert (costs.stages, sum(costs.forward)) == (session.design.stages, sum(given["forward"]))
    assert not session.errors
    session.edit(*make_edit(session.design, by_path(session.design)["cost.kind"], "roofline"))
    assert session.design.cost.stage_costs is None, "units are not seconds"


def test_a_wrong_number_of_costs_per_stage_is_a_problem_with_fixes(session: Session) -> None:
    session.edit(*make_edit(session.design, by_path(session.design)["cost.stage_costs"], "1 1 1\n2 2 2"))
    session.edit("training.steps", 3, "an edit of another part")

    (problem,) = session.errors
    assert (problem.where, problem.code) == ("cost.stage_costs", "stage_cost_count")
    spread, _ = problem.fixes
    session.edit(*fix_edit(session.design, problem, spread.label))
    assert not session.errors


def test_cost_models_that_need_more_input_are_not_offered(design: Design) -> None:
    assert [option["value"] for option in by_path(design)["cost.kind"]["options"]] == ["roofline", "unit"]


def test_a_preset_sets_the_cluster_and_is_then_selected(session: Session) -> None:
    field = by_path(session.design)["cluster"]
    assert field["value"] is None

    session.edit(*make_edit(session.design, field, "dgx-a100"))

    assert by_path(session.design)["cluster"]["value"] == "dgx-a100"
    assert session.history[0] == "cluster preset DGX A100 80 GB"


def test_amounts_in_inputs_are_read_back_as_the_same_value() -> None:
    for value, unit in ((989.4e12, "FLOP/s"), (1 / 3, "s"), (1.25e9, "B/s"), (2**30, "B"), (0.0, "s")):
        assert parse_amount(input_text("number", value, unit), unit) == value


def test_a_node_type_sets_the_cluster_with_as_many_nodes_as_the_meshes_need() -> None:
    session = Session(load_design(example("11-eight-by-32")))

    session.edit(*make_edit(session.design, by_path(session.design)["cluster"], "gb200-nvl72"))

    assert session.design.cluster.devices_per_node == 72
    assert by_path(session.design)["cluster"]["value"] == "gb200-nvl72"


def test_a_device_sets_its_data_sheet_and_its_link(session: Session) -> None:
    field = by_path(session.design)["cluster.device"]

    session.edit(*make_edit(session.design, field, "MI300X-192GB"))

    cluster = session.design.cluster
    assert (cluster.device.memory_bytes, cluster.intra_node.bandwidth) == (192e9, 448e9)
    assert session.history[0] == "device MI300X-192GB"
    assert by_path(session.design)["cluster.device"]["value"] == "MI300X-192GB"


def test_meshes_keep_their_places_when_nodes_get_more_devices() -> None:
    design = load_design(example("10-bert-on-tacc"))
    session = Session(design)
    node_of = [[design.cluster.node_of(device) for device in mesh.devices] for mesh in design.meshes]

    session.edit(*make_edit(design, by_path(design)["cluster.devices_per_node"], "4"))

    now = session.design
    assert [[now.cluster.node_of(device) for device in mesh.devices] for mesh in now.meshes] == node_of


# ---- the experts ----


@pytest.fixture
def experts() -> Session:
    return Session(load_design(example("17-experts-on-two-cores")))


def test_one_switch_adds_and_removes_the_experts_with_their_settings(seconds: Design) -> None:
    session = Session(seconds)
    assert [path for path in by_path(seconds) if "moe" in path or "experts" in path] == ["model.moe"]

    session.edit(*make_edit(session.design, by_path(session.design)["model.moe"], True))

    form = by_path(session.design)
    assert not session.errors
    assert form["model.moe"]["value"] is True
    assert form["model.moe.experts"]["value"] == 8
    session.edit(*make_edit(session.design, form["model.moe"], False))
    assert session.design.model == seconds.model
    assert not [problem for problem in session.problems if problem.where.startswith("experts")]
    session.undo()
    session.undo()
    assert session.design == seconds


def test_the_experts_section_has_every_field_of_the_document(experts: Session) -> None:
    from meshwave.engine.document.experts import Experts
    from meshwave.engine.document.model import MoE

    (section,) = (section for section in form_sections(experts.design) if section["key"] == "experts")
    paths = {field["path"] for field in section["fields"]}

    known = {f"model.moe.{name}" for name in MoE.model_fields} | {f"experts.{name}" for name in Experts.model_fields}
    assert paths == (known | {"model.moe"}) - {"experts.variant"}
    experts.edit(*make_edit(experts.design, by_path(experts.design)["experts.schedule"], "deepspeed"))
    assert [option["value"] for option in by_path(experts.design)["experts.variant"]["options"]] == [
        "paper", "pregate", "lanes",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("path", "typed", "edit"),
    [
        ("model.moe.experts", "16", ("model.moe.experts", 16, "MoE experts 16")),
        ("model.moe.capacity_factor", "", ("model.moe.capacity_factor", None, "MoE capacity factor auto")),
        ("model.moe.every", "1", ("model.moe.every", 1, "MoE every n-th block 1")),
        ("experts.load", "zipf", ("experts.load", "zipf", "layer load zipf")),
        ("experts.load", "2 1, 1;1 1 1 1 0.5", ("experts.load", [2, 1, 1, 1, 1, 1, 1, 0.5], "layer load 2, 1, 1, 1, 1, 1, 1, 0.5")),
        ("experts.degree", "", ("experts.degree", None, "layer chunks auto")),
        (
            "experts.placement",
            "0 1 2 3\n4,5\n6 7\n-",
            ("experts.placement", [[0, 1, 2, 3], [4, 5], [6, 7], []], "expert placement"),
        ),
    ],
)  # fmt: skip
def test_the_fields_of_experts_become_edits(path: str, typed: str, edit: Any, experts: Session) -> None:
    assert make_edit(experts.design, by_path(experts.design)[path], typed) == edit

    experts.edit(*edit)

    assert experts.design != load_design(example("17-experts-on-two-cores"))
    assert not [problem for problem in experts.errors if problem.where == path]
    field = by_path(experts.design)[path]
    assert read_input(field, field["text"]) == edit[1]  # as it stands there it would be typed


def test_expert_group_sizes_and_schedules_are_adjusted_to_each_other(experts: Session) -> None:
    experts.edit(*make_edit(experts.design, by_path(experts.design)["experts.esp"], "2"))
    assert (experts.design.experts.ep, experts.design.experts.esp) == (2, 2)
    experts.edit(*make_edit(experts.design, by_path(experts.design)["experts.ep"], "3"))
    assert (experts.design.experts.ep, experts.design.experts.esp) == (3, 2)  # as it was typed, and told of
    assert any(problem.where == "experts.ep" for problem in experts.problems)
    schedule = by_path(experts.design)["experts.schedule"]
    assert {"Parm S1", "PPMoE"} <= {option["title"] for option in schedule["options"]}


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("0 1 2 3\n4 5 6 7", "the placement has 2 entries, but a group of ep=4 x esp=1 has 4 devices; give one entry per device, or null"),
        ("0 1\n2 3\n4 5\n6 9", "there is no expert 9; the model has experts 0 to 7"),
        ("0 1\n2 3\n4 5\n6", "expert 7 is on no device; add it to one"),
    ],
)  # fmt: skip
def test_a_placement_that_does_not_fit_is_refused_at_its_field(typed: str, words: str, experts: Session) -> None:
    with pytest.raises(InputError) as refused:
        make_edit(experts.design, by_path(experts.design)["experts.placement"], typed)
    assert str(refused.value) == words


def test_settings_of_missing_experts_remain_visible(seconds: Design) -> None:
    session = Session(seconds)
    session.edit("experts.ep", 4, "ep")

    assert set(problems_by_path(session.problems, list(by_path(session.design)))) >= {"experts.ep"}


# ---- problems at their fields ----


def test_a_problem_belongs_to_the_nearest_field_that_contains_its_path() -> None:
    paths = ["cluster", "cluster.nodes", "pipeline.actions", "pipeline.schedule"]

    assert find_field("pipeline.actions[0][3]", paths) == "pipeline.actions"
    assert find_field("cluster.nodes", paths) == "cluster.nodes"
    assert find_field("meshes[2].devices", paths) is None
    assert find_field("pipeline", paths) is None
    assert find_field("", paths) is None


def test_problems_are_shown_at_their_fields() -> None:
    fix = set_value("model.layers", 8)
    few = Problem("model.layers", "too_few_layers", {"stages": 8, "layers": 7}, fixes=[fix])
    problems = [few, Problem("meshes[0]", "computing", severity="warning")]

    assert problems_by_path(problems, ["model.layers"]) == {
        "model.layers": [
            {
                "severity": "error",
                "message": few.message,
                "fixes": [fix.label],
                "where": "model.layers",
                "code": "too_few_layers",
            }
        ]
    }


class Said:
    """What a widget sent to its page."""

    def __init__(self, widget: Any, patch: pytest.MonkeyPatch) -> None:
        self.messages: list[dict[str, Any]] = []
        patch.setattr(widget, "_send_msg", self.messages.append)

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [message for message in self.messages if message["type"] == kind]


def test_a_refused_value_changes_nothing_and_is_answered_at_its_field(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    form, design = Form(session), session.design
    said = Said(form, monkeypatch)

    form._handle_msg({"type": "change", "path": "model.heads", "value": "7"})

    (answer,) = said.of("changed")
    assert session.design is design
    assert answer["path"] == "model.heads"
    assert "heads" in answer["refused"]
    assert not answer["refused"].startswith("model.heads")


def test_an_input_of_a_removed_field_is_refused(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    form = Form(session)
    said = Said(form, monkeypatch)

    form._handle_msg({"type": "change", "path": "pipeline.chunks", "value": "7"})

    assert "no longer has this field" in said.of("changed")[0]["refused"]


def test_the_form_follows_the_session(session: Session) -> None:
    form = Form(session)

    session.edit("model.layers", 3, "3 layers")

    assert next(f for s in form.sections.data for f in s["fields"] if f["path"] == "model.layers")["text"] == "3"
    assert form.problems["model.layers"][0]["severity"] == "error"
    assert form.focus_field("model.layers")
    assert not form.focus_field("meshes[0].devices")


# ---- numbers ----


def tile(key: str, *given: Any) -> dict[str, Any]:
    return next(each for each in metric_tiles(*given) if each["key"] == key)


def test_unit_costs_are_shown_in_units_without_a_throughput(design: Design) -> None:
    prediction = predict(design)

    assert tile("iteration", prediction)["value"] == f"{prediction.timeline.makespan:.4g} units"
    for key in ("throughput", "mfu"):
        assert tile(key, prediction)["value"] == "–"
        assert "roofline" in tile(key, prediction)["help"]


def test_the_tiles_of_a_design_in_seconds(seconds: Design) -> None:
    prediction = predict(seconds)
    numbers = prediction.numbers

    shown = {each["key"]: each for each in strip_tiles(prediction)}

    assert list(shown) == ["iteration", "throughput", "bubble", "mfu", "memory", "exposed"]
    assert shown["iteration"]["value"].endswith("ms")
    words = numbers["bounds"]["words"]
    assert shown["iteration"]["help"].endswith(f"{words[0].upper()}{words[1:]}.")
    assert shown["throughput"]["value"].endswith("seq/s")
    assert shown["throughput"]["small"].endswith("tokens/s")
    assert shown["exposed"]["small"].endswith("% of the iteration")
    assert shown["bubble"]["value"] == f"{100 * numbers['bubble_ratio']:.1f}%"
    assert "span" in shown["bubble"]["small"]
    assert shown["memory"]["bar"] == max(numbers["peak_memory_bytes"]) / numbers["capacity_bytes"]
    assert all(each["change"] is None for each in shown.values())


def test_exposed_communication_is_the_mean_of_the_meshes_next_to_that_inside_blocks() -> None:
    prediction = predict(load_design(example("20-unequal-meshes")))
    exposed, inside = prediction.numbers["exposed_communication_s"], prediction.numbers["inside_communication_s"]

    shown = tile("exposed", prediction)

    assert shown["value"] == quantity(sum(exposed) / 2, "s")
    assert shown["small"] == f"+ {quantity(sum(inside) / 2, 's')} inside blocks"
    share = 100 * sum(inside) / 2 / prediction.timeline.makespan
    assert shown["help"].endswith(f"; communication inside blocks is {share:.1f}%.")


def test_memory_that_does_not_fit_is_marked(seconds: Design) -> None:
    session = Session(seconds)
    session.edit("cluster.device.memory_bytes", 1e9, "less memory")

    shown = tile("memory", session.prediction)

    assert (shown["bar"], shown["wrong"]) == (1.0, "does not fit")


def test_a_change_is_better_or_worse_depending_on_the_figure(seconds: Design) -> None:
    pinned = predict(seconds)
    session = Session(seconds)
    session.edit("pipeline.microbatches", 64, "64 microbatches")

    changes = {each["key"]: each["change"] for each in metric_tiles(session.prediction, pinned)}

    assert (changes["iteration"]["arrow"], changes["iteration"]["verdict"]) == ("rise", "worse")
    assert (changes["throughput"]["arrow"], changes["throughput"]["verdict"]) == ("rise", "better")
    assert (changes["bubble"]["arrow"], changes["bubble"]["verdict"]) == ("fall", "better")
    assert changes["bubble"]["text"].endswith("pts")
    assert seconds.name in changes["bubble"]["spoken"]
    assert "better" in changes["bubble"]["spoken"]


def test_a_change_under_one_percent_is_neither_better_nor_worse(seconds: Design) -> None:
    metric = next(each for each in STEP_METRICS if each.key == "memory")
    before = predict(seconds).numbers
    after = {**before, "peak_memory_bytes": [1.004 * each for each in before["peak_memory_bytes"]]}

    change = metric_change(metric, after, before)

    assert change is not None
    assert (change["text"], change["arrow"], change["verdict"]) == ("0.4%", "rise", "similar")


def test_price_and_energy_are_shown_where_the_cluster_has_a_rate(seconds: Design) -> None:
    session = Session(seconds)
    assert not {"price", "energy"} & {tile["key"] for tile in strip_tiles(session.prediction)}

    session.edit("cluster.price_per_device_hour", 2.5, "a price")

    shown = {tile["key"]: tile for tile in strip_tiles(session.prediction)}
    assert "energy" not in shown
    assert shown["price"]["small"] == "per million tokens"
    assert "Whole training: " in shown["price"]["help"]


def test_no_change_is_reported_as_such(seconds: Design) -> None:
    shown = tile("iteration", predict(seconds), predict(seconds))["change"]

    assert (shown["verdict"], shown["text"]) == ("same", "")


def test_units_are_not_compared_with_seconds(design: Design, seconds: Design) -> None:
    changes = {each["key"]: each["change"] for each in metric_tiles(predict(seconds), predict(design))}

    assert changes["iteration"] is None
    assert changes["exposed"] is None
    assert changes["bubble"] is not None
    assert changes["memory"] is not None


def test_before_the_first_prediction_the_tiles_are_marked() -> None:
    assert {each["value"] for each in metric_tiles(None)} == {"–"}
    assert {each["small"] for each in metric_tiles(None)} == {"not simulated yet"}


def test_numbers_of_an_earlier_design_are_marked(session: Session) -> None:
    numbers = Numbers(session)
    assert describe_staleness(session) == {}

    session.edit("model.layers", 3, "3 layers")

    assert numbers.stale["title"] == "Last valid design"
    assert "1 error:" in numbers.stale["detail"]
    session.undo()
    assert numbers.stale == {}


def test_the_pin_follows_the_session(session: Session) -> None:
    numbers = Numbers(session)

    numbers._handle_msg({"type": "pin"})

    assert session.pinned == [session.prediction]
    assert (numbers.is_pinned, numbers.pinned) == (True, [session.design.name])
    session.edit("pipeline.microbatches", 6, "6 microbatches")
    assert (numbers.is_pinned, numbers.pinned) == (False, [session.design.name])
    numbers._handle_msg({"type": "end"})
    assert session.pinned == []


# ---- problems ----


def test_errors_come_first_and_a_click_focuses_the_field(session: Session) -> None:
    seen: list[str] = []
    problems = Problems(session, on_focus=seen.append)
    assert (problems.badge, problems.severity) == ("", "")

    session.edit("model.layers", 3, "3 layers")
    problems._handle_msg({"type": "focus", "where": "model.layers"})

    assert (problems.badge, problems.severity) == ("1", "error")
    assert seen == ["model.layers"]


def test_a_fix_is_one_undo_step(session: Session) -> None:
    problems = Problems(session)
    before = session.design.model.layers
    session.edit("model.layers", 3, "3 layers")
    (problem,) = problems.problems

    problems._handle_msg({"type": "fix", "where": "model.layers", "code": problem["code"], "fix": problem["fixes"][0]})

    assert session.errors == [] and session.design.model.layers > 3
    assert session.history[0] == problem["fixes"][0]
    session.undo()
    assert session.design.model.layers == 3 != before


def test_a_fix_of_a_solved_problem_changes_nothing(session: Session) -> None:
    problems, before = Problems(session), session.design

    problems._handle_msg({"type": "fix", "where": "model.layers", "code": "too_few_layers", "fix": "set layers to 4"})

    assert session.design == before


def test_problems_are_listed_by_severity() -> None:
    given = [
        Problem("a", "page_limit", {"subject": "a step", "computations": 2, "limit": 1}, "warning"),
        Problem("b", "page_limit", {"subject": "a step", "computations": 2, "limit": 1}),
        Problem("c", "page_limit", {"subject": "a step", "computations": 2, "limit": 1}),
    ]

    assert [each["where"] for each in problem_entries(given)] == ["b", "c", "a"]


# ---- the top bar ----


@pytest.fixture
def bar(session: Session) -> TopBar:
    return TopBar(session)


def test_every_example_is_in_the_menu_by_its_title() -> None:
    entries = example_entries()

    assert [entry["name"] for entry in entries] == list(examples())
    assert all(entry["title"] and entry["note"] for entry in entries)


def test_opening_an_example_is_one_undo_step(bar: TopBar, session: Session) -> None:
    before = session.design

    bar._handle_msg({"type": "example", "name": "04-chimera"})

    assert session.design == load_design(example("04-chimera"))
    assert not bar.unsaved
    session.undo()
    assert session.design is before
    assert bar.unsaved


def test_an_unknown_example_is_refused(bar: TopBar, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    said = Said(bar, monkeypatch)

    bar._handle_msg({"type": "example", "name": "../../etc/passwd"})

    assert "there is no example" in said.of("answered")[0]["refused"]


def test_a_saved_design_opens_unchanged(bar: TopBar, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    said = Said(bar, monkeypatch)
    session.edit("name", "a/b: <two> waves?", "rename")
    assert bar.unsaved

    bar._handle_msg({"type": "save"})

    (sent,) = said.of("download")
    assert sent["name"] == "a b two waves.json"
    assert parse_design(sent["content"]) == session.design
    assert not bar.unsaved


def test_save_as_renames_and_saves(bar: TopBar, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    said = Said(bar, monkeypatch)

    bar._handle_msg({"type": "save_as", "name": "  another   name "})

    assert session.design.name == "another name"
    assert said.of("download")[0]["name"] == "another name.json"
    assert session.history[0] == "save as another name"


def test_a_file_with_invalid_sections_is_reported_and_changes_nothing(
    bar: TopBar, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    said, before = Said(bar, monkeypatch), session.design
    document = before.model_dump(mode="json")
    document["cluster"]["nodes"] = 0

    bar._handle_msg({"type": "open", "files": [{"file": "x.json", "text": json.dumps(document)}]})

    (told,) = said.of("trouble")
    assert told["title"] == "x.json was not opened"
    assert told["lines"][0]["where"] == "cluster.nodes"
    assert session.design is before


def test_a_draft_opens_with_its_problems(bar: TopBar, session: Session) -> None:
    document = session.design.model_dump(mode="json")
    document["model"]["layers"] = 3

    bar._handle_msg({"type": "open", "files": [{"file": "draft.json", "text": json.dumps(document)}]})

    assert session.history[0] == "open draft.json"
    assert [problem.where for problem in session.errors] == ["model.layers"]


def test_importing_a_schedule_is_one_edit_of_the_open_design(
    bar: TopBar, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    said, before = Said(bar, monkeypatch), session.design
    text = exports["torch-csv-comms"].to_bytes(session.prediction).decode()

    bar._handle_msg({"type": "open", "files": [{"file": "Waves.CSV", "text": text}]})

    assert session.history[0] == "import Waves.CSV"
    assert session.design.pipeline.schedule == "custom"
    assert (session.design.name, session.design.meshes) == (before.name, before.meshes)
    assert session.prediction.timeline.makespan == predict(before).timeline.makespan
    assert bar.unsaved
    assert not said.of("trouble")
    session.undo()
    assert session.design is before


def test_a_schedule_with_errors_is_reported_at_its_cells_and_changes_nothing(
    bar: TopBar, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    said, before = Said(bar, monkeypatch), session.design

    bar._handle_msg({"type": "open", "files": [{"file": "x.csv", "text": "0F0,0B0\n1F0,1X0"}]})

    (told,) = said.of("trouble")
    assert told["title"] == "x.csv was not opened"
    assert told["lines"] == [
        {
            "where": "row 2, column 2 (B2)",
            "message": "'1X0' is not an action; did you mean 1B0?",
            "excerpt": "    1F0,1X0\n        ^^^",
            "fixes": [],
        }
    ]
    assert session.design is before


def test_other_changes_of_an_import_are_reported(
    bar: TopBar, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = Said(bar, monkeypatch)

    bar._handle_msg({"type": "open", "files": [{"file": "x.csv", "text": "0F0,0B0\n1F0,1B0"}]})

    (told,) = said.of("notes")
    assert [line["message"] for line in told["lines"]] == ["2 meshes of one device each replaced the 4 of the design"]
    assert session.design.ranks == 2


def test_a_schedule_larger_than_the_cluster_opens_as_a_new_design(
    bar: TopBar, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    said, before = Said(bar, monkeypatch), session.design
    text = "\n".join(f"{rank}F0,{rank}B0" for rank in range(20))

    bar._handle_msg({"type": "open", "files": [{"file": "twenty.csv", "text": text}]})

    assert (session.design.name, session.design.ranks) == ("twenty", 20)
    assert "undo restores" in said.of("notes")[0]["lines"][0]["message"]
    session.undo()
    assert session.design is before


def test_a_schedule_can_be_imported_into_a_draft_with_errors(bar: TopBar, session: Session) -> None:
    session.edit("model.layers", 3, "3 layers")

    bar._handle_msg({"type": "open", "files": [{"file": "x.csv", "text": "\n".join(f"{r}F0,{r}B0" for r in range(4))}]})

    assert not session.errors
    assert session.design.model.layers == 4


def test_a_file_that_is_too_large_or_not_text_is_refused() -> None:
    with pytest.raises(InputError, match="the page opens files of up to 6 MB; use the command line"):
        read_upload(" " * (LARGEST_FILE_BYTES + 1))
    with pytest.raises(InputError, match="not text"):
        read_upload(None)
    with pytest.raises(DesignError, match="not JSON"):
        read_upload("{")
    assert is_import("a.CSV")
    assert not is_import("csv.json")


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("Two waves", "Two waves"),
        ("../../x", "x"),
        ("a\nb", "a b"),
        ("...", "design"),
        ("", "design"),
        ("é 波", "é 波"),
    ],
)
def test_a_design_name_becomes_a_valid_file_name_on_any_system(name: str, file: str) -> None:
    assert file_name(name) == file


def test_an_empty_or_too_long_name_is_refused(bar: TopBar, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    said, before = Said(bar, monkeypatch), session.design

    for name in ("  ", "x" * 201):
        bar._handle_msg({"type": "rename", "name": name})

    assert all(answer["refused"] for answer in said.of("answered"))
    assert session.design is before


def test_undo_and_redo_show_the_labels_of_the_history(bar: TopBar, session: Session) -> None:
    session.edit("training.steps", 3, "steps 3")
    assert bar.history == ["steps 3", ""]

    bar._handle_msg({"type": "undo"})
    assert bar.history == ["", "steps 3"]
    assert session.design.training.steps != 3
    bar._handle_msg({"type": "redo"})
    assert session.design.training.steps == 3


@pytest.mark.parametrize("name", exports)
def test_every_export_is_downloaded_as_a_file(
    name: str, bar: TopBar, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = Said(bar, monkeypatch)
    session.edit("pipeline.waves", 1, "one wave, which all of them can say")

    bar._handle_msg({"type": "export", "name": name})

    (sent,) = said.of("download")
    assert sent["content"]
    assert sent["name"].startswith("Two waves")
    assert sent["mime"] != "application/octet-stream"


def test_parts_that_an_export_omits_are_reported(
    bar: TopBar, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = Said(bar, monkeypatch)
    session.edit("pipeline.recompute", "full", "recompute")

    for name in ("svg", "torch-csv"):
        bar._handle_msg({"type": "export", "name": name})

    (told,) = said.of("notes")
    assert told["title"] == "Some parts of the design are not in Two waves on four meshes.csv"
    assert "the modules must recompute all stages" in told["lines"][0]["message"]


def test_a_draft_with_errors_is_not_exported_as_the_previous_design(
    bar: TopBar, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = Said(bar, monkeypatch)
    session.edit("model.layers", 3, "3 layers")

    bar._handle_msg({"type": "export", "name": "svg"})
    bar._handle_msg({"type": "pin"})

    assert not said.of("download")
    for answer in said.of("answered"):
        assert "the design has errors: model.layers: 16 stages need" in answer["refused"]
    assert session.pinned == []
    assert not Numbers(session).can_pin


def test_a_comparison_can_be_ended_while_the_design_has_errors(bar: TopBar, session: Session) -> None:
    bar._handle_msg({"type": "pin"})
    session.edit("model.layers", 3, "3 layers")

    bar._handle_msg({"type": "pin"})

    assert session.pinned == []


def test_notices_of_the_session_are_shown_in_the_bar(bar: TopBar, session: Session) -> None:
    session.notice = "the disk is full"

    assert bar.notice == "the disk is full"


def test_launch_and_pin_shortcuts_call_their_handlers(session: Session) -> None:
    pressed: list[int] = []
    bar = TopBar(session, on_launch=lambda: pressed.append(1))

    bar._handle_msg({"type": "launch"})
    bar._handle_msg({"type": "pin"})

    assert pressed == [1]
    assert session.pinned


def test_the_keyboard_help_lists_the_keys_of_the_bar() -> None:
    shown = " ".join(shortcut.keys for shortcut in SHORTCUTS)

    assert all(keys in shown for keys in ("Ctrl+Z", "Ctrl+Shift+Z", "Ctrl+Y", "Ctrl+S", "Ctrl+O", "P", "L", "?"))


def test_recomputation_is_typed_as_a_word_or_as_stages(design: Design) -> None:
    field = by_path(design)["pipeline.recompute"]

    assert (field["kind"], field["text"]) == ("list", "none")
    assert make_edit(design, field, "full") == ("pipeline.recompute", "full", "recompute full")
    assert make_edit(design, field, "0, 3") == ("pipeline.recompute", [0, 3], "recompute 0, 3")
    with pytest.raises(InputError, match="'some' is not a number"):
        make_edit(design, field, "some")


def test_the_findings_of_a_search_are_shown_with_the_problems(session: Session) -> None:
    panel = Problems(session)
    assert panel.findings == []

    session.edit("", {"pipeline": {"schedule": "auto", "microbatches": 8}}, "schedule Auto")

    assert panel.findings[0].startswith("Simulated ")
