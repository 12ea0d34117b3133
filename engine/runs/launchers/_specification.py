"""Complete specification of a run, including its links and the time-dilation factor of a dry run."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from meshwave.engine.document import Design
from meshwave.engine.predict.prediction import Prediction, predict
from meshwave.engine.run_files import RunFolderError
from meshwave.engine.runs.dry_run import Rehearsal, action_durations, default_scale, step_wall_seconds
from meshwave.engine.runs.emulation.hosts import apply_hosts, cap_link_rates, default_hosts, scale_for_links
from meshwave.engine.runs.options import PLAIN, Hosts, Options
from meshwave.engine.runs.run_folder import (
    RunSpec,
    fix_layers,
    process_count,
    read_design,
    read_launched_design,
    read_options,
)
from meshwave.engine.runs.training_data import document_end_id, stored_data
from meshwave.engine.runs.training_windows import first_step_documents


def specify_run(prediction: Prediction, options: Options = PLAIN) -> RunSpec:
    """Return the specification of a run, including its links and the time-dilation factor of a dry run.

    Raises:
        InputError: the requested hosts cannot be used, or a step of the dry run would take too long.
    """
    drawn, hosts, dry_run = prediction.design, options.hosts, options.rehearse
    if hosts is not None:
        prediction = _predict_on(apply_hosts(drawn, prediction.costs.layers, hosts), prediction)
    if dry_run is not None:
        dry_run = Rehearsal(scale=_time_dilation(prediction, hosts, dry_run.scale))
        options = options.model_copy(update={"rehearse": dry_run})
    if hosts is not None:
        prediction = _predict_on(cap_link_rates(prediction.design, dry_run), prediction)
    return RunSpec(prediction, drawn, options)


def predict_documents(spec: RunSpec, data: Path | None) -> RunSpec:
    """Return the specification with the prediction for the documents of the first step, if they are known.

    The executed design has the ID of the token that ends each document.

    Args:
        spec: the specification of a run.
        data: the training text; None for the text that comes with Meshwave.

    Raises:
        InputError: the text is too short, or the token that ends its documents is unknown.
    """
    design, prediction = spec.design, spec.prediction
    end = _end_in_converted_data(design, data)
    training = design.training.model_copy(update={"document_end": end})
    lengths = first_step_documents(design.model_copy(update={"training": training}), data)
    if lengths is not None:
        training = training.model_copy(update={"document_lengths": lengths})
    if training == design.training:
        return spec
    design = fix_layers(design.model_copy(update={"training": training}), prediction.costs.layers)
    return replace(spec, prediction=_predict_on(design, prediction))


def _end_in_converted_data(design: Design, data: Path | None) -> int | None:
    """Return the ID of the token that ends each document; for data that another run converted, the ID of that run."""
    if data is not None and design.training.document_end == "end_of_text" and stored_data(data.parent) == data:
        with suppress(RunFolderError):
            return read_design(data.parent).training.document_end_id
    return document_end_id(design, data)


class ResumedLaunch(NamedTuple):
    """Design, options and training text of a launch that continues a run from its newest checkpoint."""

    design: Design
    options: Options
    text: Path | None  # the training text; None for the text that comes with Meshwave


def resumed_launch(folder: Path) -> ResumedLaunch:
    """Return the launch that continues the run in a folder from its newest checkpoint.

    Raises:
        RunFolderError: the design or the options of the run are missing or damaged.
    """
    options = read_options(folder).model_copy(update={"resume": folder.name, "initial_weights": None})
    return ResumedLaunch(read_launched_design(folder), options, stored_data(folder))


def _predict_on(design: Design, prediction: Prediction) -> Prediction:
    """Predict the program of an existing prediction again, on the links of another design."""
    return prediction if design == prediction.design else predict(design, prediction.program)


def _time_dilation(prediction: Prediction, hosts: Hosts | None, asked: float | None) -> float:
    """Return the time-dilation factor of a dry run: the requested one, or the default for this machine."""
    durations = action_durations(prediction.program, prediction.costs)
    if asked is not None:
        step_wall_seconds(durations, asked)
        return asked
    scale = default_scale(durations, process_count(prediction.design), os.cpu_count() or 1)
    if hosts is not None and prediction.costs.unit == "s":
        scale = scale_for_links(scale, hosts, durations.step)
    return scale


def describe_manner(design: Design, options: Options) -> str:
    """Return a text on how a run differs from plain training; it names the links that the run uses."""
    if options.hosts is None:
        return options.description
    return options.model_copy(update={"hosts": default_hosts(design, options.hosts.nodes)}).description
