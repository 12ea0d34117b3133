"""Calibration of a launch target: a job measures one node, and the target check measures the network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshwave.engine.costs.profile import LinkLine, Profile, load_profile
from meshwave.engine.errors import InputError
from meshwave.engine.runs.launchers import Launcher
from meshwave.engine.runs.launchers._torchrun import NodeLayout
from meshwave.engine.runs.target_check import LinkReport, check_target, job_launcher, run_job_to_end

MODULE = "meshwave.engine.runtime.processes.target_calibration"
PLAN = "calibration.json"
"""File with the calibration options that differ from the defaults of the node."""
PROFILE = "profile.json"
LIMIT_S = 3600.0
"""Maximum time, in seconds, that a calibration waits for its job."""
PROBE_BYTES = (4, 16 * 2**20)
"""Message sizes, in bytes, at which the line through latency and bandwidth of a link is sampled."""


def calibrate_target(launcher: Launcher, plan: Mapping[str, Any], limit_s: float = LIMIT_S) -> Profile:
    """Measure one node of a launch target, and the links between nodes if it has several.

    Raises:
        Refusal: the target starts no processes.
        RunRefusal: a job fails, or exceeds the time limit.
    """
    cluster = job_launcher(launcher)
    with run_job_to_end(cluster, NodeLayout((1,), (0,)), MODULE, limit_s, {PLAN: dict(plan)}) as (folder, failure):
        try:
            profile = load_profile(folder / PROFILE)
        except InputError:
            raise failure from None
    if cluster.max_nodes < 2:
        return profile
    between = check_target(cluster, 2, 1)[0].inter_node
    return profile if between is None else with_link_between_nodes(profile, between)


def with_link_between_nodes(profile: Profile, link: LinkReport) -> Profile:
    """Return the profile with a measured link between nodes added."""
    beta = 1 / link.bandwidth
    samples = tuple((float(size), link.latency_s + size * beta) for size in PROBE_BYTES)
    line = LinkLine(pair="across_nodes", alpha_s=link.latency_s, beta_s_per_byte=beta, r2=1.0, samples=samples)
    others = tuple(each for each in profile.links if each.pair != "across_nodes")
    return profile.model_copy(update={"links": (*others, line)})
