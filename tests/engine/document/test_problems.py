"""Problems of an invalid document: their exact places, numbers and fixes."""

from __future__ import annotations

import copy
import tracemalloc
from typing import Any

import pytest

from meshwave.engine.document import parse_design
from meshwave.engine.document.fixes import apply_edits
from meshwave.engine.document.problems import problems
from meshwave.engine.errors import InputError
from meshwave.engine.findings import DesignError, Problem
from tests._findings import check_fixes, find_problems
from tests.engine.document.document_changes import Change, combine_changes, drop, pipeline, put
from tests.engine.document.wrong_parts import ACTIONS, MESHES, MODELS, PIPELINES
from tests.engine.document.wrong_values import FORMATS, KEYS, NAMES, VALUES


@pytest.fixture
def document() -> dict[str, Any]:
    """The document of the design page: two waves of a GPT with experts over four meshes of two nodes."""
    return {
        "format": "meshwave/1",
        "name": "two waves on four devices",
        "cluster": {
            "nodes": 2,
            "devices_per_node": 2,
            "device": {"peak_flops": 312e12, "memory_bytes": 80e9, "memory_bandwidth": 2e12, "efficiency": 0.5},
            "intra_node": {"latency_s": 5e-6, "bandwidth": 300e9},
            "inter_node": {"latency_s": 1e-5, "bandwidth": 25e9},
        },
        "model": {
            "kind": "gpt",
            "layers": 32,
            "hidden": 2560,
            "heads": 32,
            "sequence": 1024,
            "vocab": 50257,
            "moe": {"experts": 8, "top_k": 2, "capacity_factor": 1.25, "every": 2},
        },
        "meshes": [{"name": name, "devices": [at], "axes": {"dp": 1, "tp": 1}} for at, name in enumerate("ABCD")],
        "pipeline": {"schedule": "hanayo", "waves": 2, "microbatches": 8, "stages": None, "placement": None},
        "experts": {"schedule": "parm-auto", "ep": 2, "esp": 1, "placement": None, "load": None},
        "transfer": {"strategy": "broadcast", "ordering": "load-balance"},
        "training": {"micro_batch_size": 1, "steps": 20, "optimizer": "adamw", "lr": 3e-4, "precision": "fp32"},
        "cost": {"kind": "roofline"},
    }


def problems_after(document: dict[str, Any], change: Change) -> list[Problem]:
    wrong = copy.deepcopy(document)
    change(wrong)
    with pytest.raises(DesignError) as found:
        parse_design(wrong)
    return list(found.value.problems)


def test_the_base_document_is_valid(document: dict[str, Any]) -> None:
    assert parse_design(document).stages == 16


EVERY = [*KEYS, *NAMES, *VALUES, *FORMATS, *MESHES, *PIPELINES, *ACTIONS, *MODELS]


every_mistake = pytest.mark.parametrize(
    ("change", "where", "code", "params"),
    EVERY,
    ids=[f"{where}: {code} {number}" for number, (_, where, code, _) in enumerate(EVERY)],
)


@every_mistake
def test_one_mistake_is_one_problem(
    document: dict[str, Any], change: Change, where: str, code: str, params: dict[str, Any]
) -> None:
    (problem,) = problems_after(document, change)

    assert (problem.where, problem.code) == (where, code)
    assert params.items() <= problem.params.items()


@every_mistake
def test_each_fix_removes_its_problem(
    document: dict[str, Any], change: Change, where: str, code: str, params: dict[str, Any]
) -> None:
    change(document)

    check_fixes(document, find_problems(document))


FIXES = [
    (put("clustr", {}), "clustr", ["remove clustr"]),
    (put("cost", {"kind": "unit", "forwards": 1}), "cost.forwards", ["rename forwards to forward", "remove forwards"]),
    (put("pipeline.schedule", "hanyo"), "pipeline.schedule", ['set schedule to "hanayo"']),
    (put("pipeline.microbatches", 0), "pipeline.microbatches", ["set microbatches to 1"]),
    (pipeline(schedule="interleaved-1f1b", microbatches=6), "pipeline.microbatches", ["use 4 microbatches", "use 8 microbatches"]),
    (pipeline(schedule="gpipe", microbatches=2, stages=[8, 8, 8, 9]), "pipeline.stages", ["balance the stages by cost", "set layers to 33"]),
    (put("meshes[2].devices", [7]), "meshes[2].devices", ["use 4 nodes", "move mesh C to device 2"]),
    (put("meshes[2].name", "A"), "meshes[2].name", ["rename mesh 2 to C"]),
    (put("model.heads", 7), "model.heads", ["set heads to 5", "set heads to 8", "set hidden to 2562"]),
    (put("experts.ep", 3), "experts.ep", ["set ep to 2", "set ep to 4"]),
    (put("experts.load", [1.0]), "experts.load", ['set load to "uniform"']),
]  # fmt: skip


@pytest.mark.parametrize(("change", "where", "labels"), FIXES, ids=[where for _, where, _ in FIXES])
def test_every_remedy_that_is_an_edit_is_offered_as_a_fix(
    document: dict[str, Any], change: Change, where: str, labels: list[str]
) -> None:
    (problem,) = problems_after(document, change)

    assert (problem.where, [fix.label for fix in problem.fixes]) == (where, labels)


def test_a_schedule_that_needs_another_number_of_meshes_offers_it(document: dict[str, Any]) -> None:
    document["meshes"].pop()
    document["pipeline"] = {"schedule": "chimera", "microbatches": 4}

    (problem,) = problems_after(document, lambda document: None)
    fewer, more = (apply_edits(document, fix.edits) for fix in problem.fixes)

    assert [mesh["name"] for mesh in fewer["meshes"]] == ["A", "B"]
    assert [mesh["devices"] for mesh in more["meshes"]] == [[0], [1], [2], [3]]


@pytest.mark.parametrize("path", ["", "[]", "meshes[9].name", "name.first"])
def test_an_edit_of_an_impossible_key_is_refused(document: dict[str, Any], path: str) -> None:
    with pytest.raises(InputError, match="the document has no"):
        apply_edits(document, [(path, 1)])


def test_all_mistakes_are_listed_at_once(document: dict[str, Any]) -> None:
    found = problems_after(
        document, combine_changes(put("zz", 1), put("model.hiden", 1), put("training.steps", "many"))
    )

    assert [problem.where for problem in found] == ["model.hiden", "training.steps", "zz"]


def test_inconsistencies_between_parts_are_listed_at_once(document: dict[str, Any]) -> None:
    found = problems_after(
        document, combine_changes(put("meshes[1].devices", [0]), put("meshes[3].name", "A"), put("experts.ep", 5))
    )

    assert [problem.where for problem in found] == ["meshes[1].devices", "meshes[3].name", "experts.ep"]


def test_an_invalid_part_does_not_hide_inconsistencies_of_the_others(document: dict[str, Any]) -> None:
    mistakes = combine_changes(
        put("cluster.device.efficiency", 1.5),  # no check between parts looks at these five
        put("model.vocab", 0),
        put("pipeline.recompute", "sometimes"),
        put("training.lr", -1),
        put("zz", 1),
        put("meshes[1].devices", [0]),
        put("meshes[3].name", "A"),
        put("pipeline.stages", [16, 16]),
    )

    found = problems_after(document, mistakes)

    assert {problem.where for problem in found} == {
        "cluster.device.efficiency",
        "model.vocab",
        "pipeline.recompute",
        "training.lr",
        "zz",
        "meshes[1].devices",
        "meshes[3].name",
        "pipeline.stages",
    }


@pytest.mark.parametrize(
    ("hidden", "beside"),
    [
        (put("pipeline.waves", 0), put("meshes[1].devices", [0])),
        (drop("", "pipeline"), put("meshes[1].devices", [0])),
        (put("meshes[2].axes", {"dp": 2}), put("meshes[1].devices", [0])),
        (put("model.heads", 7), put("pipeline.placement", [0, 1])),
        (put("meshes[2].axes", {"dp": 2}), put("pipeline.stages", [32])),
        (put("pipeline.stages", [16, 16]), put("pipeline.recompute", [3, 16])),
        (put("pipeline.stages", [16, 16]), put("pipeline.placement", [0, 1])),
        (put("cost", {"kind": "unit", "forward": -1}), put("meshes[3].name", "A")),
        (put("experts.load", "zip"), put("experts.ep", 3)),
    ],
)
def test_two_mistakes_are_two_problems(document: dict[str, Any], hidden: Change, beside: Change) -> None:
    alone = [*problems_after(document, hidden), *problems_after(document, beside)]

    assert problems_after(document, combine_changes(hidden, beside)) == alone


def test_a_thousand_equal_problems_are_listed_twenty_times(document: dict[str, Any]) -> None:
    cells = [["zz"] * 1000, *[["0F0", "0B0"]] * 3]

    found = problems_after(document, pipeline(schedule="custom", microbatches=1, actions=cells))

    assert [problem.where for problem in found] == [
        *(f"pipeline.actions[0][{n}]" for n in range(20)),
        "pipeline.actions",
    ]
    assert (found[-1].code, found[-1].params) == ("unlisted_problems", {"count": 980})


@pytest.mark.slow
def test_thousands_of_unknown_keys_are_reported_quickly(document: dict[str, Any]) -> None:
    found = problems_after(document, put("training", {f"key{number}": 1 for number in range(50_000)}))

    assert len(found) == 21
    assert found[-1].where == "training.key0"


def test_suggested_numbers_of_heads_are_divisible_by_every_tp(document: dict[str, Any]) -> None:
    document["cluster"]["devices_per_node"] = 4
    document["experts"]["ep"] = 4
    wide = put("meshes", [{"name": "A", "devices": [0, 1, 2, 3], "axes": {"tp": 4}}])

    (problem,) = problems_after(document, combine_changes(wide, put("model.heads", 7)))

    assert problem.params["suitable"] == [4, 8]


@pytest.mark.parametrize("key", ["ep", "esp"])
def test_expert_settings_of_a_model_without_experts_give_a_warning(document: dict[str, Any], key: str) -> None:
    document["model"]["moe"], document["experts"] = None, {}

    assert warnings(document, put("experts", {key: 3})) == [(f"experts.{key}", "unused_expert_setting")]
    assert warnings(document, put("experts", {"schedule": "ppmoe"})) == []


@pytest.mark.parametrize("name", ["", "  "])
def test_a_design_without_a_name_gives_a_warning(document: dict[str, Any], name: str) -> None:
    document["model"]["moe"], document["experts"] = None, {}

    assert warnings(document, put("name", name)) == [("name", "empty_name")]


def test_problem_codes_are_stable(document: dict[str, Any]) -> None:
    (problem,) = problems_after(document, put("meshes[2].axes", {"dp": 2}))

    assert (problem.code, problem.severity) == ("mesh_size", "error")


def warnings(document: dict[str, Any], change: Change) -> list[tuple[str, str]]:
    drawn = copy.deepcopy(document)
    change(drawn)
    return [(problem.where, problem.code) for problem in problems(parse_design(drawn)) if problem.severity == "warning"]


@pytest.mark.parametrize(
    ("devices", "is_rectangle"),
    [([0, 1], True), ([1, 5], True), ([0, 1, 4, 5], True), ([5, 1, 4, 0], True), ([0, 2], False), ([3, 4], False)],
)
def test_a_mesh_that_is_not_a_rectangle_gives_a_warning(
    document: dict[str, Any], devices: list[int], is_rectangle: bool
) -> None:
    """Nodes are rows and their devices columns: 0 1 2 3 over 4 5 6 7."""
    document["cluster"]["devices_per_node"] = 4
    document["model"]["moe"], document["experts"] = None, {}
    mesh = {"name": "A", "devices": devices, "axes": {"dp": len(devices)}}

    found = warnings(document, put("meshes", [mesh]))

    assert found == ([] if is_rectangle else [("meshes[0].devices", "scattered_devices")])


def test_expert_groups_that_do_not_fit_a_mesh_give_a_warning(document: dict[str, Any]) -> None:
    assert warnings(document, put("experts.ep", 2)) == [("experts.ep", "split_expert_groups")]
    assert warnings(document, put("experts.ep", 1)) == []


@pytest.mark.parametrize("cell", ["2999F2999", "999999F999999"])
def test_a_cell_far_out_of_range_is_refused_quickly(document: dict[str, Any], cell: str) -> None:
    document["pipeline"] = {"schedule": "custom", "microbatches": 4, "actions": [[cell], [], [], []]}
    draft = parse_design(document, draft=True)
    tracemalloc.start()

    with pytest.raises(InputError, match="there are only 4"):
        print(draft.stages)
    assert [problem.code for problem in problems(draft) if problem.severity == "error"] == ["unknown_microbatch"]
    with pytest.raises(InputError, match="there are only 4"):
        draft.pipeline.program(draft.pipe)

    assert tracemalloc.get_traced_memory()[1] < 5_000_000
    tracemalloc.stop()


def test_a_short_stage_list_of_many_mistakes_names_each(document: dict[str, Any]) -> None:
    found = problems_after(document, put("pipeline.stages", [0, 1, -1]))

    assert [problem.where for problem in found] == ["pipeline.stages[0]", "pipeline.stages[2]"]
