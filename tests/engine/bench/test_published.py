"""Predictions of published runs: every row has a prediction or a reason."""

import json
from dataclasses import asdict

import pytest

from meshwave.engine.bench.published.command import compare_published_runs, error_rows, to_text
from meshwave.engine.bench.published.designs import published_design, stage_layers
from meshwave.engine.bench.published.fitting import fit_parameters, use_constants
from meshwave.engine.bench.published.left_out import left_out_errors, linearize
from meshwave.engine.bench.published.page import LARGE_ERROR, error_reason, markdown_page
from meshwave.engine.bench.published.predictions import predict_runs, to_json
from meshwave.engine.bench.published.runs import parse_run, read_rows
from meshwave.engine.cli.main import main
from meshwave.engine.document import load_design
from meshwave.engine.document.devices import device_kinds, find_device_kind, replace_device_kinds
from meshwave.engine.files import published_examples
from meshwave.engine.predict.prediction import predict
from meshwave.engine.predict.published_examples import published_steps
from meshwave.engine.predict.similar_runs import predicted_published_runs

ROW = {
    "id": "example-1",
    "device": "A100-SXM4-80GB",
    "devices": 16,
    "gpus_per_node": 8,
    "interconnect": "NVLink in node; 4 Omni-Path links per node",
    "arch": "dense",
    "layers": 8,
    "hidden": 1024,
    "ffn": 4096,
    "heads": 16,
    "vocab": 50000,
    "seq": 2048,
    "mlp": "gelu",
    "precision": "bf16",
    "tp": 2,
    "pp": 2,
    "dp": 4,
    "mbs": 1,
    "gbs": 32,
    "recompute": "none",
    "iteration_s": 1.0,
}
RECIPE = {"model": "DeepSeekV3", "device": "GB200 NVL72", "precision": "mxfp8"}


def test_a_row_becomes_the_design_that_it_describes():
    design, assumed = published_design(parse_run({**ROW, "vp": 2, "precision": "fp8 delayed"}))

    assert (design.ranks, design.stages, design.pipeline.microbatches) == (2, 4, 8)
    assert design.meshes[1].devices == tuple(range(8, 16))
    assert design.cluster.nics_per_node == 4
    assert design.cluster.inter_node.bandwidth == 12.5e9
    assert design.training.linear_precision == "fp8"
    assert design.pipeline.stages == (2, 2, 2, 2)
    assert assumed == ()


@pytest.mark.parametrize(
    ("change", "overlaps"),
    [
        ({}, False),
        ({"notes": "DeepEP; EP overlap"}, True),
        ({"framework": "Megatron-Bridge 26.06", **RECIPE}, True),
        ({"framework": "Megatron-Bridge 26.04", **RECIPE}, False),
        ({"notes": "EP overlap", "vp": 1}, False),
    ],
)
def test_exchanges_overlap_in_runs_whose_notes_or_recipes_say_so(change, overlaps):
    """Megatron overlaps the exchanges of a pipeline only if its ranks have several chunks."""
    design = published_design(parse_run({**ROW, "vp": 2, **change})).design

    assert (getattr(design.pipeline, "slots", "single") == "fused") == overlaps


@pytest.mark.parametrize(
    ("change", "compiled", "blocking"),
    [
        ({"framework": "Megatron-LM 2022"}, True, False),
        ({"framework": "torchtitan", "notes": "no torch.compile; node interconnect not stated"}, False, False),
        ({"framework": "Megatron-DeepSpeed Feb 2022"}, True, True),
    ],
)
def test_software_that_a_row_states_selects_kernels_and_launches(change, compiled, blocking):
    training = published_design(parse_run({**ROW, **change})).design.training

    assert (training.compile, training.blocking_launches) == (compiled, blocking)


def test_the_first_zero_3_of_deepspeed_waits_for_its_gathers():
    row = {**ROW, "framework": "Megatron-LM 2021", "sharding": "zero3", "schedule": "ZeRO-3, no model parallelism"}
    trainings = (published_design(parse_run(each)).design.training for each in (row, {**row, "schedule": "1F1B"}))

    assert [each.blocking_gathers for each in trainings] == [True, False]


@pytest.mark.parametrize(
    ("change", "graphs"),
    [
        ({"notes": "paged stash; full CG; HybridEP"}, "step"),
        ({"notes": "partial CG"}, "attention"),
        ({"framework": "Megatron-Bridge 26.06", **RECIPE}, "step"),
        ({"framework": "Megatron-Bridge 26.04", **RECIPE}, "attention"),
        ({"framework": "Megatron-Bridge 26.04", **RECIPE, "model": "Qwen3_30B_a3B"}, "router"),
        ({"framework": "Megatron-Bridge 25.09", **RECIPE}, "none"),
    ],
)
def test_graphs_launch_the_kernels_that_the_notes_or_the_recipe_of_a_run_name(change, graphs):
    assert published_design(parse_run({**ROW, **change})).design.training.cuda_graphs == graphs


@pytest.mark.parametrize(
    ("change", "short"),
    [({}, False), ({"precision": "bf16 (PURE params)"}, True), ({"framework": "InternLM", "sharding": "zero1"}, True)],
)
def test_gradients_have_sixteen_bits_where_precision_or_framework_say_so(change, short):
    assert published_design(parse_run({**ROW, **change})).design.training.bf16_gradients == short


@pytest.mark.parametrize(
    ("change", "kernel", "assumptions"),
    [
        ({"framework": "Megatron-DeepSpeed Feb 2022"}, "unfused", 0),
        ({"framework": "torchtitan Jun 2025"}, "flash_2", 1),
        ({"source": "foundation-model-stack/fms-fsdp@5a296af:README.md"}, "flash_2", 0),
        ({"framework": "NeMo 25.04"}, "default", 0),
    ],
)
def test_an_attention_kernel_is_stated_or_implied_by_the_framework(change, kernel, assumptions):
    design, assumed = published_design(parse_run({**ROW, **change}))

    assert (design.training.attention_kernel, len(assumed)) == (kernel, assumptions)


@pytest.mark.parametrize(
    ("layout", "layers", "stages", "expected"),
    [
        ("embedding and loss count as one layer each: uniform", 14, 4, [3, 4, 4, 3]),
        ("15 | 16 x6 | 15 (split points)", 126, 8, [15, *[16] * 6, 15]),
        ("uniform", 12, 4, [3, 3, 3, 3]),
        ("uneven: not stated", 13, 4, None),
    ],
)
def test_a_stage_layout_becomes_layers_per_stage(layout, layers, stages, expected):
    assert stage_layers(parse_run({**ROW, "layers": layers, "stage_layout": layout}), stages) == expected


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"missing": ["mbs"]}, "run_incomplete"),
        ({"kind": "layer_time"}, "run_not_a_step"),
        ({"device": "TPU v5p"}, "run_device"),
        ({"mlp": "none"}, "run_mlp"),
        ({"dp": 3}, "run_degrees"),
        ({"gbs": 33}, "run_batch"),
        ({"recompute": "sometimes"}, "run_recompute"),
        ({"iteration_s": None}, "run_incomplete"),
        ({"layers": "many"}, "run_unreadable"),
        ({"hidden": 1023}, "indivisible_width"),
        ({"missing": 3}, "run_unreadable"),
        ({"iteration_s": "14.8 s"}, "run_unreadable"),
        ({"mtp_layers": -1}, "run_unreadable"),
        ({"dp": 10**9, "devices": 4 * 10**9}, "run_unreadable"),
        ({"gbs": 8 * 10**8}, "out_of_range"),
    ],
)
def test_a_row_that_cannot_be_expressed_is_refused_with_the_reason(tmp_path, change, code):
    file = tmp_path / "runs.json"
    file.write_text(json.dumps([{**ROW, **change}]))

    (row,) = compare_published_runs(file, say=print)["rows"]

    assert row["id"] == "example-1"
    assert row["refused"]["code"] == code
    assert row["refused"]["text"]


@pytest.mark.parametrize("row", [None, 3, [], {}, {"id": 4}, {"missing": 3}])
def test_a_value_that_is_not_a_row_is_refused(tmp_path, row):
    file = tmp_path / "runs.json"
    file.write_text(json.dumps([row]))

    assert compare_published_runs(file, say=print)["rows"][0]["refused"]["code"]


def test_predictions_are_summarized_by_source_and_device(tmp_path, capsys):
    file = tmp_path / "runs.json"
    file.write_text(json.dumps([ROW, {**ROW, "id": "example-2", "mbs": 2, "iteration_s": 0.8}, {"id": "other-1"}]))

    assert main(["bench", "published", "--runs", str(file), "--json"]) == 0

    figures = json.loads(capsys.readouterr().out)
    first = figures["rows"][0]
    assert first["error"] == pytest.approx(first["predicted_s"] / first["published_s"] - 1)
    assert figures["summary"]["by_source"][0]["rows"] == 2
    order = figures["summary"]["order"]
    assert (order["pairs"], order["right"]) == (1, 1 - len(order["wrong"]))
    assert figures["summary"]["refused"] == {"run_unreadable": 1}
    assert "order of configurations" in "\n".join(to_text(figures))


@pytest.mark.parametrize("text", ["", "{}", "[" * 100_000, "3"])
def test_a_file_without_a_list_of_rows_is_refused(tmp_path, capsys, text):
    file = tmp_path / "runs.json"
    file.write_text(text)

    assert main(["bench", "published", "--runs", str(file)]) == 2
    assert "published runs" in capsys.readouterr().err


def test_a_huge_number_of_equal_stages_in_a_layout_is_not_expanded():
    assert stage_layers(parse_run({**ROW, "stage_layout": "1 | 2 x999999999999 | 3"}), 4) is None


def test_a_missing_file_and_a_misplaced_option_are_refused(tmp_path, capsys):
    assert main(["bench", "published", "--runs", str(tmp_path / "none.json")]) == 2
    assert main(["bench", "links", "--runs", "x"]) == 2
    assert "--runs" in capsys.readouterr().err
    assert main(["bench", "published", "--runs", ""]) == 2
    assert main(["bench", "links", "--runs", ""]) == 2


def test_the_shipped_runs_are_expressed():
    runs = [parse_run(row) for row in read_rows(None)]

    assert len(runs) > 400
    assert all(run.source for run in runs)


def test_a_model_whose_row_names_only_the_kind_of_mlp_has_its_published_architecture():
    experts = {"model": "GPT OSS 120B", "mlp": "swiglu", "tp": 1, "dp": 8, "experts": 8, "top_k": 2, "moe_ffn": 512}

    model = published_design(parse_run({**ROW, **experts})).design.model

    assert (model.mlp.activation, model.mlp.bias, model.mlp.gated) == ("clamped_swish", True, True)
    assert model.attention.sinks
    plain = published_design(parse_run({**ROW, **experts, "model": "Qwen3"})).design.model
    assert (plain.mlp.activation, plain.mlp.bias, plain.attention.sinks) == ("silu", False, False)


@pytest.mark.parametrize(
    ("detail", "recompute"),
    [
        ('["layernorm", "moe_act"]', "none"),
        ("['mla_up_proj', 'mlp']", "none"),
        ("moe_act layernorm + activation offload", "none"),
        ("core attention", "attention"),
        (None, "attention"),
    ],
)
def test_attention_is_recomputed_unless_a_row_names_other_modules(detail, recompute):
    design, assumed = published_design(parse_run({**ROW, "recompute": "selective", "recompute_detail": detail}))

    assert design.pipeline.recompute == recompute
    assert ("no time to recompute norms, activations and projections" in assumed) == (recompute == "none")


class PowerLaw:
    """Run whose time is a product of powers of two constants."""

    def __init__(self, source, share, kind="A100-SXM4-80GB"):
        self.run = parse_run({**ROW, "id": f"{source}-{kind}"})
        self._share, self._kind = share, kind

    def ratio(self):
        constants = find_device_kind(self._kind).constants
        return (0.7 / constants.product_efficiency) ** self._share * (0.5 / constants.overlap) ** 0.1


def test_a_source_is_left_out_of_the_fit_that_predicts_it():
    kinds = ["A100-SXM4-80GB"]
    start = {**device_kinds()[kinds[0]].constants.model_dump(), "product_efficiency": 0.6, "overlap": 0.5}
    try:
        exact = [PowerLaw("one", 1.0), PowerLaw("other", 0.5)]
        linear = linearize(exact, kinds, start)
        use_constants(kinds, {**start, "product_efficiency": 0.8})
        assert [each.ratio() for each in linear] == pytest.approx([each.ratio() for each in exact], rel=1e-6)
        errors = left_out_errors({tuple(kinds): linear})
    finally:
        replace_device_kinds({})

    assert errors.keys() == {f"one-{kinds[0]}", f"other-{kinds[0]}"}
    at_the_priors = (0.5 / 0.7) ** 0.1 - 1
    assert abs(errors[f"one-{kinds[0]}"]) < abs(at_the_priors) / 2, "the run of the other source corrects the constants"


def test_a_source_is_left_out_on_all_devices_of_a_family():
    kinds = "H100-SXM5-80GB", "H100-SXM5-96GB"
    try:
        errors = left_out_errors({(kind,): [PowerLaw("one", 0.5, kind)] for kind in kinds})
    finally:
        replace_device_kinds({})

    assert errors == {f"one-{kind}": pytest.approx((0.5 / 0.7) ** 0.1 - 1) for kind in kinds}, "that of the priors"


def test_constants_of_a_family_are_related():
    fixed = device_kinds()["H100-SXM5-80GB"].constants.model_dump()
    try:
        use_constants(["H100-SXM5-80GB"], {**fixed, "product_efficiency": 0.5})
        related, unrelated = (
            fit_parameters([], [kind], {"product_efficiency": 0.6}, fixed=fixed)["product_efficiency"]
            for kind in ("H100-SXM5-96GB", "A100-SXM4-80GB")
        )
    finally:
        replace_device_kinds({})

    assert (related, unrelated) == pytest.approx(((0.7 * 0.5) ** 0.5, 0.7), rel=1e-4)


def test_a_fit_of_one_constant_keeps_the_others():
    kinds = ["A100-SXM4-80GB"]
    fixed = {**device_kinds()[kinds[0]].constants.model_dump(), "overlap": 0.5}
    try:
        found = fit_parameters([PowerLaw("one", 1.0)] * 9, kinds, {"product_efficiency": 0.6}, fixed=fixed)
        used = find_device_kind(kinds[0]).constants.model_dump()
    finally:
        replace_device_kinds({})

    assert found.keys() == {"product_efficiency"} and found["product_efficiency"] > 0.6
    assert used == {**fixed, "product_efficiency": used["product_efficiency"]}


def distinct_rows(rows):
    return [*{(row["id"].partition("-")[0], row["device"]): row for row in rows}.values()]


@pytest.mark.parametrize("choose", [distinct_rows, pytest.param(list, marks=pytest.mark.nightly)])
@pytest.mark.slow
def test_the_errors_behind_intervals_are_those_of_the_shipped_runs_and_constants(choose):
    """After a change of runs, constants or costs, ``make published`` writes them again."""
    stored = {run.id: asdict(run) for run in predicted_published_runs()}
    rows = choose(read_rows(None))

    found = error_rows({"rows": [to_json(each) for each in predict_runs(rows)]})

    expected = [stored[row["id"]] for row in rows if row["id"] in stored]
    assert found == [{**row, "error": pytest.approx(row["error"], abs=2e-4)} for row in expected]


def test_every_large_error_has_a_reason():
    rows = [asdict(run) for run in predicted_published_runs()]
    large = [row for row in rows if abs(row["error"]) > LARGE_ERROR]

    assert [row["id"] for row in large if error_reason(row, rows) == "not found"] == []


def test_another_release_of_a_configuration_explains_an_error_in_its_direction():
    early, late = "mbridge-25.11-Llama-FP8-CS-8", "mbridge-26.02-Llama-FP8-8"
    rows = [{"id": early, "published_s": 2.0, "error": -0.3}, {"id": late, "published_s": 1.4, "error": 0.0}]

    assert error_reason(rows[0], rows) == "release 26.02 ran the same configuration in 0.70 of the time"
    assert error_reason({**rows[0], "error": 0.3}, rows) == error_reason({**rows[0], "error": 0.3})


def test_the_page_lists_pairs_in_the_wrong_order_by_the_reason_of_the_larger_error():
    tokens = {"predicted_tokens_per_s_per_device": 1.0, "assumed": (), "device": "H100", "arch": "dense"}
    faster = {"id": "fms-1", "publication": "fms", "error": -0.2, **tokens}
    slower = {"id": "fms-2", "publication": "fms", "error": 0.0, **tokens}
    order = {"pairs": 2, "right": 1, "wrong": [("fms-1", "fms-2")]}
    summary = {"predicted": 2, "order": order, "by_device": [], "by_source": [], "refused": {}}

    page = markdown_page({"rows": [faster, slower], "summary": summary})

    assert f"| {error_reason(faster)} | 1 |" in page.partition("Pairs in the wrong order")[2]


def test_every_constant_of_a_device_has_an_origin():
    for kind in device_kinds().values():
        optional = [name for name in ("attention_kernels", "switch_reduction_efficiency") if getattr(kind, name)]
        stated = {"data sheet", "blocking_launch_s", *optional}
        assert stated | set(type(kind.constants).model_fields) == set(kind.origin)


@pytest.mark.slow
@pytest.mark.parametrize("name", published_examples())
def test_a_published_example_is_the_design_of_its_run_and_is_predicted_within_ten_percent(name):
    design, step = load_design(published_examples()[name]), published_steps()[name]
    (run,) = (parse_run(row) for row in read_rows(None) if row["id"] == step.run.id)

    assert published_design(run).design.model_copy(update={"name": design.name}) == design
    assert predict(design).timeline.makespan == pytest.approx(run.step_s, rel=0.1)
