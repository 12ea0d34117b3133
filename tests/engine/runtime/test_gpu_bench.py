"""The bench of one GPU: cases that can run, figures in words, and a word where there is no GPU."""

from __future__ import annotations

from typing import Any

import pytest

from meshwave.engine.document.unsupported import runnable
from meshwave.engine.errors import InputError, RunError
from meshwave.engine.runtime.benchmarks.gpu import (
    CASES,
    LARGE,
    NO_GPU,
    Case,
    gpu,
    peak_of,
    pieces,
    to_text,
    tried,
    utilisation,
)

DEVICE = {
    "name": "NVIDIA H200",
    "software": "torch 2.13, CUDA 13.0",
    "memory_bytes": 1.4e11,
    "matrix_flops": {"bf16": 8e14, "fp32": 5e13},
    "peak_flops": 9.894e14,
    "nccl": "2.29.7",
    "nccl_takes_several_ranks": False,
    "stamp_s": 2e-6,
    "clocks_apart_s": 1.5e-5,
}


def test_it_says_that_it_needs_a_gpu() -> None:
    with pytest.raises(InputError, match="needs an NVIDIA GPU"):
        gpu(0)


def test_every_case_is_a_design_that_runs_and_the_large_one_has_as_many_parameters() -> None:
    assert [found for case in CASES for found in runnable(case.design)] == []
    model = CASES[0].design.model
    blocks, vocabulary = 12 * model.layers * model.hidden**2, 2 * model.vocab * model.hidden
    assert LARGE in CASES[0].name
    assert blocks + vocabulary == pytest.approx(1.41e9, rel=0.01), "1.31 of them counted with one table of tokens"


@pytest.mark.parametrize(
    ("name", "flops"), [("NVIDIA H200", 9.894e14), ("NVIDIA A100-SXM4-80GB", 3.12e14), ("Tesla T4", None)]
)
def test_the_peak_is_that_of_a_preset_of_the_same_device(name: str, flops: float | None) -> None:
    assert peak_of(name) == flops


def test_figures_are_told_a_case_a_line() -> None:
    measured = {"name": LARGE, "tokens_per_s": 41_000.0, "step_s": 0.8, "peak_memory_bytes": 6e10}
    cases: list[dict[str, Any]] = [
        {**measured, "mfu_of_measured": 0.5, "mfu_of_peak": 0.4},
        {**measured, "mfu_of_measured": 0.5},
        {"name": "too large", "out_of_memory": True},
    ]
    lines = to_text({"device": DEVICE, "gloo": [{"ranks": 2, "bytes_per_s": 1e9}], "cases": cases})

    assert len(lines) == 4 + len(cases)
    assert "large matrix products reach 800 TFLOP/s in bf16" in lines[0] and "one rank a GPU" in lines[1]
    assert "2 processes share the GPU" in lines[2]
    assert lines[-3].split()[-5:] == ["ms", "60", "GB", "50.0%", "40.0%"] and "41,000" in lines[-3]
    assert lines[-2].endswith("unknown")
    assert lines[-1].endswith("needs more memory than there is")


def test_what_failed_is_told_in_its_place() -> None:
    def fails() -> dict[str, Any]:
        raise RunError("no such kernel")

    failed = tried(fails)
    lines = to_text({"device": failed, "gloo": [failed], "cases": [{"name": LARGE, **failed}]})

    assert len([line for line in lines if line.endswith(": no such kernel")]) == 3
    assert utilisation({"step_s": 1.0, "model_flops": 1e14, "precision": "bf16"}, failed) == {}
    assert utilisation(failed, DEVICE) == {}


def test_without_a_gpu_a_case_can_be_played_small() -> None:
    """So that what measures is known to run before there is a GPU."""
    (case,) = (case.small for case in CASES if case.precision == "fp32")

    found = pieces([case], NO_GPU)[case.name]()

    assert found["step_s"] > 0 and found["losses"][1] < found["losses"][0]
    assert utilisation(found, {"matrix_flops": {"fp32": 1e12}, "peak_flops": None}).keys() == {"mfu_of_measured"}


@pytest.mark.gpu
def test_a_small_case_is_measured() -> None:
    small = [Case("small", layers=2, hidden=256, sequence=128, compile=how) for how in (False, True)]

    figures = gpu(1, cases=small)

    for case in figures["cases"]:
        assert case["step_s"] > 0 and 0 < case["mfu_of_measured"] < 1
        assert case["losses"][1] < case["losses"][0]
    assert [each["ranks"] for each in figures["gloo"]] == [2, 4, 8]
    assert figures["device"]["clocks_apart_s"] < 1e-3
    assert len(to_text(figures)) > len(small)
