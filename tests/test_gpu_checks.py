"""``scripts/gpu.py`` reports a part that fails or hangs, and continues with the others."""

from __future__ import annotations

import importlib.util
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

PATH = Path(__file__).resolve().parents[1] / "scripts" / "gpu.py"


@pytest.fixture(scope="module")
def script() -> Any:
    spec = importlib.util.spec_from_file_location("gpu_checks", PATH)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # a NamedTuple looks its module up
    spec.loader.exec_module(module)
    return module


def python(code: str) -> list[str]:
    return [sys.executable, "-S", "-c", code]


def test_a_failed_or_hanging_part_is_reported_and_the_others_continue(script: Any, tmp_path: Path) -> None:
    log = io.StringIO()
    checks = script.Checks(tmp_path, log, str(tmp_path), 3600.0)
    parts = {
        "figures": (python("print('{\"step_s\": 2.0}')"), 60, (0,)),
        "words": (python("print('all is well')"), 60, (0,)),
        "told to have failed": (python('print(\'{"failed": "no memory"}\')'), 60, (0,)),
        "broken": (python("import sys; sys.exit('a reason')"), 60, (0,)),
        "another status": (python("import sys; print('[]'); sys.exit(1)"), 60, (0, 1)),
        "hanging": (python("import time; time.sleep(600)"), 0.2, (0,)),
        "not there": ([str(tmp_path / "nothing")], 60, (0,)),
    }

    found = {name: checks.run_part(script.Part(name, *part)) for name, part in parts.items()}

    assert found["figures"] == {"step_s": 2.0} and found["words"] == "all is well" and found["another status"] == []
    written = json.loads((tmp_path / "gpu.json").read_text())
    states = {name: result["state"] for name, result in written["parts"].items()}
    assert [*states] == [*parts] and states["figures"] == "ok"
    assert states["told to have failed"] == "failed: no memory" and states["broken"] == "failed: status 1"
    assert "a reason" in written["parts"]["broken"]["said"] and "a reason" in log.getvalue()
    assert states["hanging"] == "failed: not finished after 0 s" and states["not there"].startswith("failed: ")
    assert written["machine"]["python"] and "torch" not in written["machine"]["lacking"]
    assert len(script.to_text(written).splitlines()) == len(parts)


def test_parts_without_remaining_time_are_omitted(script: Any, tmp_path: Path) -> None:
    checks = script.Checks(tmp_path, io.StringIO(), str(tmp_path), 0.0)

    assert checks.run_part(script.Part("late", python("1 / 0"), 60)) is None
    assert checks.results["parts"]["late"] == {"state": "skipped: no time left"}


def test_trainings_are_compared_with_rates_and_predictions(script: Any) -> None:
    figures = {"step_s": 2.0, "tokens_per_s": 10.0, "precision": "bf16", "model_flops": 8e14}
    memory = {"peak_memory_bytes": 3e10, "formulas_memory_bytes": 2e10}
    device = {"matrix_flops": {"bf16": 8e14}, "peak_flops": 1e15}
    found = {script.FIRST[0]: device, "large": {**figures, **memory}, "failed": None}

    told = script.summarize(found, {"prediction of large": {"state": "ok", "found": {"makespan_s": 1.0}}})

    assert [*told] == ["large"]
    assert told["large"] == pytest.approx(
        {
            "tokens_per_s": 10.0,
            "step_s": 2.0,
            "mfu_of_measured": 0.5,
            "mfu_of_peak": 0.4,
            "measured_by_predicted_step": 2.0,
            "measured_by_predicted_memory": 1.5,
        }
    )
