"""The fields of the design form, and the edits that inputs become."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from meshwave.designer.forms import (
    form_sections,
    format_number,
    key_label,
    make_edit,
    read_input,
)
from meshwave.designer.forms.values import input_text
from meshwave.designer.state.design_edits import fix_edit
from meshwave.designer.state.design_session import Session
from meshwave.engine.amounts import parse_amount
from meshwave.engine.document import Design, load_design
from meshwave.engine.errors import InputError
from meshwave.engine.files import example, examples
from meshwave.engine.schedules import schedules
from tests._findings import refusal
from tests.designer.widgets import fields_by_path

# ---- the form is read off the document ----


@pytest.mark.parametrize("name", examples())
def test_the_form_of_every_example_has_the_values_of_the_document(name: str) -> None:
    design = load_design(example(name))
    document = design.model_dump(mode="json")

    for path, field in fields_by_path(design).items():
        if path in ("model", "cluster", "cluster.device"):  # choices of presets and of a data sheet, not values
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


@pytest.mark.parametrize("name", examples())
def test_the_words_of_a_document_have_labels(name: str) -> None:
    for path, field in fields_by_path(load_design(example(name))).items():
        for option in field.get("options", ()):
            assert option["title"] in UNLABELLED or option["title"] != option["value"] or field["optional"], path


UNLABELLED = {"fp32", "fp64", "fp8"}
"""Words of documents that are their own labels."""


def test_labels_replace_the_words_that_the_help_explains(design: Design) -> None:
    field = fields_by_path(design)["pipeline.recompute"]

    assert "Layers with early stop: each layer is run again up to" in field["help"]


def test_the_form_shows_used_fields_and_hides_others(design: Design) -> None:
    keys = [section["key"] for section in form_sections(design)]

    assert keys == ["model", "experts", "training", "pipeline", "transfer", "cluster", "cost"]


@pytest.mark.slow
@pytest.mark.parametrize("name", schedules)
def test_a_schedule_has_its_own_options(name: str, design: Design) -> None:
    chosen = Session(design)
    chosen.edit("pipeline.microbatches", 8, "as many as the most demanding of them needs")
    chosen.edit(*make_edit(chosen.design, fields_by_path(chosen.design)["pipeline.schedule"], name))

    own = {path.removeprefix("pipeline.") for path in fields_by_path(chosen.design) if path.startswith("pipeline.")}

    options = {option for option, field in schedules[name].model_fields.items() if option != "replicas"}  # always two
    assert options <= own
    assert ("actions" in own) == (name == "custom")


def test_choosing_custom_starts_from_the_current_order(session: Session) -> None:
    before = session.prediction.numbers["makespan_s"]

    session.edit(*make_edit(session.design, fields_by_path(session.design)["pipeline.schedule"], "custom"))

    assert not session.errors
    assert session.prediction.numbers["makespan_s"] == before


def test_the_meaning_of_null_is_shown_under_an_empty_field(design: Design) -> None:
    field = fields_by_path(design)["model.ffn"]

    assert (field["placeholder"], field["hint"]) == ("auto", "four times hidden")
    assert "null" not in field["help"]


def test_large_and_small_numbers_are_also_shown_with_prefixes(design: Design) -> None:
    form = fields_by_path(design)

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
        "Microbatch size", "NICs per node", "Learning rate", "FFN width",
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
            ("cluster.inter_node.bandwidth", 12.5e9, "link between nodes bandwidth 12.5 GB/s"),
        ),
        (
            "cluster.inter_node.latency_s",
            "50 us",
            ("cluster.inter_node.latency_s", 5e-5, "link between nodes latency 50 µs"),
        ),
        ("pipeline.stages", "1, 2 1;1", ("pipeline.stages", [1, 2, 1, 1], "layers per stage 1, 2, 1, 1")),
        ("training.optimizer", "sgd", ("training.optimizer", "sgd", "optimizer SGD")),
        ("training.data", "notes.txt", ("training.data", "notes.txt", "training text notes.txt")),
    ],
)
def test_an_input_becomes_one_edit(path: str, typed: Any, edit: Any, design: Design) -> None:
    assert make_edit(design, fields_by_path(design)[path], typed) == edit


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
    assert refusal(lambda: make_edit(design, fields_by_path(design)[path], typed)).code == code


def test_another_cost_model_keeps_the_shared_keys(design: Design) -> None:
    session = Session(design)

    session.edit(*make_edit(design, fields_by_path(design)["cost.kind"], "roofline"))

    assert session.design.cost.kind == "roofline"
    assert not session.errors


def test_a_pasted_table_of_costs_per_stage_is_priced_and_shown_again(seconds: Design) -> None:
    session = Session(seconds)
    rows = [f"{stage}\t{0.01 * (1 + stage)}\t0.02\t0.01" for stage in range(seconds.stages)]

    session.edit(*make_edit(seconds, fields_by_path(seconds)["cost.stage_costs"], "\n".join(rows)))

    field, priced = fields_by_path(session.design)["cost.stage_costs"], session.prediction
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
    session.edit(*make_edit(session.design, fields_by_path(session.design)["cost.kind"], "roofline"))
    assert session.design.cost.stage_costs is None, "units are not seconds"


def test_a_wrong_number_of_costs_per_stage_is_a_problem_with_fixes(session: Session) -> None:
    session.edit(*make_edit(session.design, fields_by_path(session.design)["cost.stage_costs"], "1 1 1\n2 2 2"))
    session.edit("training.steps", 3, "an edit of another part")

    (problem,) = session.errors
    assert (problem.where, problem.code) == ("cost.stage_costs", "stage_cost_count")
    spread, _ = problem.fixes
    session.edit(*fix_edit(session.design, problem, spread.label))
    assert not session.errors


def test_cost_models_that_need_more_input_are_not_offered(
    design: Design, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MESHWAVE_HOME", str(tmp_path))  # without a calibration profile
    assert [option["value"] for option in fields_by_path(design)["cost.kind"]["options"]] == ["roofline", "unit"]


def test_a_preset_sets_the_cluster_and_is_then_selected(session: Session) -> None:
    field = fields_by_path(session.design)["cluster"]
    assert field["value"] is None

    session.edit(*make_edit(session.design, field, "dgx-a100"))

    assert fields_by_path(session.design)["cluster"]["value"] == "dgx-a100"
    assert session.history[0] == "cluster preset DGX A100 80 GB"


def test_a_published_model_sets_the_model_and_stays_selected_with_another_sequence_length(session: Session) -> None:
    field = fields_by_path(session.design)["model"]
    assert field["value"] is None

    for name in ("Mixtral-8x7B-v0.1", "bert-large-uncased"):
        session.edit(*make_edit(session.design, fields_by_path(session.design)["model"], name))

        assert not session.errors
        assert fields_by_path(session.design)["model"]["value"] == name
        assert session.history[0] == f"model preset {name}"

    session.edit("model.sequence", 256, "a shorter sequence")
    assert fields_by_path(session.design)["model"]["value"] == name
    session.edit("model.hidden", 2048, "a wider model")
    assert fields_by_path(session.design)["model"]["value"] is None


def test_amounts_in_inputs_are_read_back_as_the_same_value() -> None:
    for value, unit in ((989.4e12, "FLOP/s"), (1 / 3, "s"), (1.25e9, "B/s"), (2**30, "B"), (0.0, "s")):
        assert parse_amount(input_text("number", value, unit), unit) == value


def test_a_node_type_sets_the_cluster_with_as_many_nodes_as_the_meshes_need() -> None:
    session = Session(load_design(example("11-eight-by-32")))

    session.edit(*make_edit(session.design, fields_by_path(session.design)["cluster"], "gb200-nvl72"))

    assert session.design.cluster.devices_per_node == 72
    assert fields_by_path(session.design)["cluster"]["value"] == "gb200-nvl72"


def test_a_device_sets_its_data_sheet_and_its_link(session: Session) -> None:
    field = fields_by_path(session.design)["cluster.device"]

    session.edit(*make_edit(session.design, field, "MI300X-192GB"))

    cluster = session.design.cluster
    assert (cluster.device.memory_bytes, cluster.intra_node.bandwidth) == (192e9, 448e9)
    assert session.history[0] == "device MI300X-192GB"
    assert fields_by_path(session.design)["cluster.device"]["value"] == "MI300X-192GB"


def test_meshes_keep_their_places_when_nodes_get_more_devices() -> None:
    design = load_design(example("10-bert-on-tacc"))
    session = Session(design)
    node_of = [[design.cluster.node_of(device) for device in mesh.devices] for mesh in design.meshes]

    session.edit(*make_edit(design, fields_by_path(design)["cluster.devices_per_node"], "4"))

    now = session.design
    assert [[now.cluster.node_of(device) for device in mesh.devices] for mesh in now.meshes] == node_of


def test_recomputation_is_typed_as_a_word_or_as_stages(design: Design) -> None:
    field = fields_by_path(design)["pipeline.recompute"]

    assert (field["kind"], field["text"]) == ("list", "None")
    for typed in ("full", "all stages"):  # the word of the document, or its label
        assert make_edit(design, field, typed) == ("pipeline.recompute", "full", "recompute All stages")
    assert make_edit(design, field, "0, 3") == ("pipeline.recompute", [0, 3], "recompute 0, 3")
    with pytest.raises(InputError, match="'some' is not a number"):
        make_edit(design, field, "some")


def test_the_end_of_documents_is_typed_as_a_word_or_as_a_token(design: Design) -> None:
    field = fields_by_path(design)["training.document_end"]
    assert (field["kind"], field["text"], field["hint"]) == ("integer", "", "End-of-text token, or a number")
    assert make_edit(design, field, "50256")[:2] == ("training.document_end", 50256)
    assert make_edit(design, field, "end_of_text")[:2] == ("training.document_end", "end_of_text")
    assert make_edit(design, field, "")[:2] == ("training.document_end", None)
    with pytest.raises(InputError):
        make_edit(design, field, "newline")
