"""Tests of exported scripts."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from meshwave.engine.document import parse_design
from meshwave.engine.exports import exports
from meshwave.engine.predict.prediction import predict
from tests.engine.runtime.test_worker import ONE_F_ONE_B, ROOT, assert_trained

Document = dict[str, Any]


def start(folder: Path, document: Document, *launcher: str) -> subprocess.CompletedProcess[str]:
    (folder / "trains.py").write_bytes(exports["script"].to_bytes(predict(parse_design(document))))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, *launcher, "trains.py", "--steps", "2"]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240)


def test_torchrun_trains_an_exported_script_with_each_process_on_its_device(
    draw: Callable[..., Document], tmp_path: Path
) -> None:
    document = draw(ONE_F_ONE_B, steps=9)
    for mesh, device in zip(document["meshes"], (1, 0), strict=True):  # torchrun numbers processes by device
        mesh["devices"] = [device]

    done = start(tmp_path, document, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")

    assert done.returncode == 0, done.stderr
    assert_trained(tmp_path / "trains.run")
    assert done.stdout.count("step 2: loss") == 1


def test_a_script_that_is_started_without_torchrun_prints_the_command(
    draw: Callable[..., Document], tmp_path: Path
) -> None:
    done = start(tmp_path, draw(ONE_F_ONE_B))

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "trains.py: this design needs 2 processes, one per device: torchrun --standalone --nproc-per-node 2 trains.py\n"
    )
