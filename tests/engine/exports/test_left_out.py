"""No export silently omits a part of a design: it contains it, refuses the design, or lists the omission."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from meshwave.engine.cli.main import main
from meshwave.engine.document import load_design, parse_design
from meshwave.engine.document.design import Design
from meshwave.engine.errors import InputError
from meshwave.engine.exports import exports
from meshwave.engine.exports.torch_csv import ordinal
from meshwave.engine.files import example
from meshwave.engine.predict.prediction import predict

WHOLE = ("html", "kubernetes", "script", "slurm")
"""Formats that contain the design itself."""
PICTURES = ("perfetto", "png", "svg")
"""Formats that show the prediction and are not read for training."""
ORDERS = ("torch-csv", "torch-csv-comms")


def changed_design(name: str, **sections: Mapping[str, Any]) -> Design:
    document = load_design(example(name)).model_dump(mode="json")
    return parse_design(
        {**document, **{section: {**document[section], **change} for section, change in sections.items()}}
    )


def test_every_export_format_is_classified() -> None:
    assert sorted(exports) == sorted((*WHOLE, *PICTURES, *ORDERS, "megatron", "torchtitan"))


@pytest.mark.parametrize("form", ORDERS)
def test_an_order_lists_the_properties_that_modules_must_have(form: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "16-gpt2-moe", "--to", form]) == 0

    assert capfd.readouterr().err.splitlines() == [
        "not in the file: each line is a mesh of dp=2 x tp=4 devices; the modules must distribute a stage over them",
        "not in the file: torch sends from each device to its counterpart; the broadcast transfers are not used",
        "not in the file: the experts (16 in every 2nd block, ppmoe with ep=4 x esp=1) must be part of the modules of the "
        "stages",
    ]


@pytest.mark.parametrize(
    ("recompute", "said"),
    [("full", "all stages"), ([1], "stage 1"), ([0, 2], "stages 0, 2"), ("layers", "parts of each layer: layers")],
)
def test_recomputed_stages_are_listed(recompute: Any, said: str) -> None:
    prediction = predict(changed_design("01-first-wave", pipeline={"recompute": recompute}))

    (words,) = exports["torch-csv"].omissions(prediction)

    assert words.startswith(f"the modules must recompute {said} (")


@pytest.mark.parametrize("form", [*ORDERS, "megatron", "torchtitan"])
def test_unequal_meshes_are_refused(form: str) -> None:
    with pytest.raises(InputError, match="needs equal meshes, but A dp=2 x tp=1 and B dp=1 x tp=2 differ"):
        exports[form].to_bytes(predict(load_design(example("20-unequal-meshes"))))


@pytest.mark.parametrize("form", ORDERS)
def test_split_backwards_are_part_of_the_order(form: str) -> None:
    found = exports[form].to_bytes(predict(load_design(example("13-zero-bubble")))).decode()

    assert "0I0" in found and "0W0" in found


@pytest.mark.parametrize("form", exports)
def test_a_plain_design_has_no_omissions(form: str) -> None:
    assert exports[form].omissions(predict(load_design(example("03-gpt-on-two-cores")))) == []


def test_ordinals_of_block_intervals() -> None:
    assert [ordinal(number) for number in (1, 2, 3, 4, 11, 22)] == ["", "2nd ", "3rd ", "4th ", "11th ", "22nd "]


@pytest.mark.parametrize("form", [*ORDERS, "megatron", "torchtitan"])
def test_meshes_that_divide_sequences_differently_are_refused(form: str) -> None:
    design = load_design(example("24-context-parallel"))
    turned = design.meshes[0].model_copy(update={"axes": {"dp": 2, "tp": 1}})
    design = design.model_copy(update={"meshes": (turned, *design.meshes[1:])})

    with pytest.raises(InputError, match=r"dp=2 x tp=1 and .* dp=1 x cp=2 x tp=1 differ"):
        exports[form].to_bytes(predict(design))
