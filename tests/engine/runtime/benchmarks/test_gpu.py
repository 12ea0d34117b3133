"""Benchmarks of one GPU: valid cases, text of the figures, and the error without a GPU."""

from __future__ import annotations

from typing import Any

import pytest

from meshwave.engine.document.unsupported import run_problems
from meshwave.engine.errors import InputError, RunError
from meshwave.engine.runtime.benchmarks.gpu import (
    CASES,
    LARGE,
    NO_GPU,
    TrainingCase,
    benchmark_gpu,
    benchmark_pieces,
    preset_peak_flops,
    result_or_failure,
    to_text,
    utilization,
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


def test_a_machine_without_a_gpu_is_rejected() -> None:
    with pytest.raises(InputError, match="needs an NVIDIA GPU"):
        benchmark_gpu(0)


def test_every_case_is_a_valid_design_and_the_large_one_has_1_3_billion_parameters() -> None:
    assert [found for case in CASES for found in run_problems(case.design)] == []
    model = CASES[0].design.model
    blocks, vocabulary = 12 * model.layers * model.hidden**2, 2 * model.vocab * model.hidden
    assert LARGE in CASES[0].name
    assert blocks + vocabulary == pytest.approx(1.41e9, rel=0.01), "1.31e9 with one table of tokens"


@pytest.mark.parametrize(
    ("name", "flops"), [("NVIDIA H200", 9.89e14), ("NVIDIA A100-SXM4-80GB", 3.12e14), ("Tesla T4", None)]
)
def test_the_peak_is_that_of_the_preset_of_the_device(name: str, flops: float | None) -> None:
    assert preset_peak_flops(name) == flops


def test_the_text_has_a_line_for_each_case() -> None:
    measured = {"name": LARGE, "tokens_per_s": 41_000.0, "step_s": 0.8, "peak_memory_bytes": 6e10}
    cases: list[dict[str, Any]] = [
        {**measured, "mfu_of_measured": 0.5, "mfu_of_peak": 0.4},
        {**measured, "mfu_of_measured": 0.5},
        {"name": "too large", "out_of_memory": True},
    ]
    lines = to_text({"device": DEVICE, "gloo": [{"ranks": 2, "bytes_per_s": 1e9}], "cases": cases})

    assert len(lines) == 4 + len(cases)
    assert "large matrix products reach 800 TFLOP/s in bf16" in lines[0] and "one rank per GPU" in lines[1]
    assert "2 processes share the GPU" in lines[2]
    assert lines[-3].split()[-5:] == ["ms", "60", "GB", "50.0%", "40.0%"] and "41,000" in lines[-3]
    assert lines[-2].endswith("unknown")
    assert lines[-1].endswith("out of memory")


def test_failures_are_reported_in_their_place() -> None:
    def fail() -> dict[str, Any]:
        raise RunError("no such kernel")

    failed = result_or_failure(fail)
    lines = to_text({"device": failed, "gloo": [failed], "cases": [{"name": LARGE, **failed}]})

    assert len([line for line in lines if line.endswith(": no such kernel")]) == 3
    assert utilization({"step_s": 1.0, "model_flops": 1e14, "precision": "bf16"}, failed) == {}
    assert utilization(failed, DEVICE) == {}


def test_a_small_version_of_a_case_runs_without_a_gpu() -> None:
    (case,) = (case.small_version for case in CASES if case.precision == "fp32")

    found = benchmark_pieces([case], NO_GPU)[case.name]()

    assert found["step_s"] > 0 and found["losses"][1] < found["losses"][0]
    assert utilization(found, {"matrix_flops": {"fp32": 1e12}, "peak_flops": None}).keys() == {"mfu_of_measured"}


@pytest.mark.gpu
def test_small_cases_are_measured_on_a_gpu() -> None:
    small = [TrainingCase("small", layers=2, hidden=256, sequence=128, compile=compiled) for compiled in (False, True)]

    figures = benchmark_gpu(1, cases=small)

    for case in figures["cases"]:
        assert case["step_s"] > 0 and 0 < case["mfu_of_measured"] < 1
        assert case["losses"][1] < case["losses"][0]
    assert [each["ranks"] for each in figures["gloo"]] == [2, 4, 8]
    assert figures["device"]["clocks_apart_s"] < 1e-3
    assert len(to_text(figures)) > len(small)
