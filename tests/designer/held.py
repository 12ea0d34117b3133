"""Functions for jobs that fail, or wait until a test releases them."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from meshwave.designer.state import gallery_cards, predictions
from meshwave.designer.state.transfer_drawing import TransferDrawing
from meshwave.engine.document import Design
from meshwave.engine.document.transfer_document import TransferSpec
from meshwave.engine.files import data_folder
from meshwave.engine.predict import gallery
from meshwave.engine.predict.expert_map import GridCluster
from meshwave.engine.progress import report_progress

computed, judged = predictions.compute_prediction, gallery_cards.make_cards
FEW = ("1f1b", "gpipe", "hanayo", "zb-v", "dualpipe")
IN_BROWSER = ("1f1b", "gpipe", "hanayo", "zb-v", "chimera", "dualpipe", "gems")


def let_go() -> None:
    """Release waiting jobs."""
    (data_folder() / "go").touch()


def hold_again() -> None:
    """Let jobs wait again."""
    (data_folder() / "go").unlink()


def wait_for_release() -> None:
    report_progress(0.5, "waiting for the test")
    while not (data_folder() / "go").exists():
        time.sleep(0.01)


def compute_after_release(design: Design) -> predictions.ComputedPrediction:
    wait_for_release()
    return computed(design)


def drawing(spec: TransferSpec, strategy: str, ordering: str) -> TransferDrawing:
    wait_for_release()
    return TransferDrawing.from_spec(spec, strategy, ordering)


def raise_error(design: Design) -> NoReturn:
    raise RuntimeError(f"broken at {design.pipeline.microbatches}")


def hold_cards(design: Design) -> Iterator[gallery_cards.Cards]:
    yield gallery_cards.Cards([], {"type": "found", "cards": []}, [])
    wait_for_release()


def endless_results(*given: object) -> Iterator[list[Any]]:
    yield []
    wait_for_release()


def judge_few(design: Design) -> Iterator[gallery_cards.Cards]:
    """Predict the gallery without the schedules that search for an order."""
    return judge_after_release(design, FEW)


def judge_for_browser(design: Design) -> Iterator[gallery_cards.Cards]:
    """Predict the gallery of the schedules for the browser tests."""
    return judge_after_release(design, IN_BROWSER)


def judge_after_release(design: Design, schedules: Sequence[str]) -> Iterator[gallery_cards.Cards]:
    """Predict the gallery of some schedules. The process ends afterwards, so that nothing is restored."""
    every = gallery.list_variants
    gallery.list_variants = lambda design: [each for each in every(design) if each.schedule in schedules]
    yield from judged(design)


def map_of_layers(cluster: GridCluster) -> dict[str, Any]:
    return {"notes": [cluster.description]}


def write_errors_to(path: Path) -> Iterator[int]:
    """Yield numbers from a process whose errors are written to a file."""
    os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), 2)
    yield from range(3)


def endless_numbers() -> Iterator[int]:
    """Yield numbers without an end."""
    yield from itertools.count()
