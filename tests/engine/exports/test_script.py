"""Script export: it contains data, documents its start, and trains the exact program."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import Any

import pytest

from meshwave.engine.costs.models.calibrated import CalibratedCost
from meshwave.engine.document import parse_design
from meshwave.engine.exports import exports
from meshwave.engine.exports.script import unpack_program
from meshwave.engine.findings import DesignError
from meshwave.engine.predict.prediction import predict
from meshwave.engine.program.program_file import to_json
from tests._strategies import Drawn

MODEL = {"kind": "gpt", "layers": 4, "hidden": 32, "heads": 4, "sequence": 16, "vocab": 256}
TRAINING = {"micro_batch_size": 1, "steps": 2, "lr": 1e-3, "precision": "fp64"}
LINK = {"latency_s": 1e-5, "bandwidth": 1e9}
WAVES = Drawn({"schedule": "hanayo", "waves": 1, "microbatches": 4}, 2)


def script(name: str = "waves", **sections: Any) -> str:
    design = WAVES.design(**{"name": name, "model": MODEL, "training": TRAINING, **sections})
    return exports["script"].to_bytes(predict(design)).decode()


def constants(text: str) -> dict[str, str]:
    """Return the values of the constants in the file, and check that it calls only ``main``."""
    tree = ast.parse(text)
    assert {ast.unparse(call) for call in ast.walk(tree) if isinstance(call, ast.Call)} == {"main(DESIGN, PROGRAM)"}
    return {each.targets[0].id: ast.literal_eval(each.value) for each in tree.body if isinstance(each, ast.Assign)}  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["two waves", '"""; import os', "'''+exit()+'''", "\\", "''" * 4, '"'])
def test_a_script_contains_the_design_and_its_program_for_any_names(name: str) -> None:
    prediction = predict(WAVES.design(name=name))

    found = constants(exports["script"].to_bytes(prediction).decode())

    assert parse_design(found["DESIGN"]) == prediction.design
    assert f'"digest":"{to_json(prediction.program)["digest"]}"' in unpack_program(found["PROGRAM"])


def test_a_script_documents_its_start_on_one_and_on_several_machines() -> None:
    cluster = {"nodes": 2, "devices_per_node": 1, "intra_node": LINK, "inter_node": LINK}

    told = ast.get_docstring(ast.parse(script(cluster={**WAVES.design().cluster.model_dump(), **cluster})))

    assert told is not None
    assert "torchrun --standalone --nproc-per-node 2 waves.py" in told
    assert "torchrun --nnodes 2 --nproc-per-node 1 --rdzv-backend c10d" in told


def test_a_script_does_not_contain_measured_costs_of_a_machine() -> None:
    drawn = WAVES.design()
    measured = drawn.model_copy(update={"cost": CalibratedCost(profile="here.json")})
    prediction = replace(predict(drawn), design=measured)

    found = parse_design(constants(exports["script"].to_bytes(prediction).decode())["DESIGN"])

    assert found.cost.kind == "roofline"


def test_a_design_that_cannot_run_is_refused_at_export() -> None:
    with pytest.raises(DesignError, match="vocab"):
        script(model={**MODEL, "vocab": 100})
