"""Smaller messages for dry runs that this machine could not deliver in time."""

from __future__ import annotations

from math import lcm

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.costs import Costs
from meshwave.engine.costs.boundary_transfers import boundary_tensor
from meshwave.engine.costs.padded_documents import length_parts, padded_lengths
from meshwave.engine.document import Design
from meshwave.engine.machine import total_memory_bytes
from meshwave.engine.runs.dry_run import (
    ActionDurations,
    Waits,
)
from meshwave.engine.runtime.dry_run.delayed_messages import (
    LOOPBACK_BYTES_PER_S,
    MESSAGE_MEMORY_FRACTION,
)
from meshwave.engine.runtime.execution.job import Job, RunNote
from meshwave.engine.units import quantity

NEGLIGIBLE_BYTES = 2**14
"""Largest message, in bytes, that takes no longer than an empty one."""


LATENESS_FRACTION = 0.01
"""Permitted lateness of a message with zero modelled duration, as a fraction of the shortest action."""


COLLECTIVE_BYTES_PER_S = LOOPBACK_BYTES_PER_S / 2
"""Conservative bandwidth of collectives on this machine in bytes/s: members wait for each other and sum tensors."""


EMULATED_LATENCY_NS = 100_000
"""Latency of a small message between emulated hosts in nanoseconds."""


CONCURRENT_MESSAGES = 8
"""Estimated number of messages that a process holds at the same time."""


def shrink_to_fit(job: Job, costs: Costs, scale: float, durations: ActionDurations) -> tuple[Design, RunNote]:
    """Return a design whose messages this machine can store and send in the modelled time, and a note about them.

    If the messages fit, it is the design of the job itself. Over emulated links the duration does not limit their size.
    """
    sends = np.flatnonzero(job.program.is_send)
    largest = float(costs.bytes[sends].max(initial=0.0))
    if not largest:
        return job.design, RunNote("no mesh sends messages to another mesh")
    ratio = MESSAGE_MEMORY_FRACTION * total_memory_bytes() / (CONCURRENT_MESSAGES * largest * job.layout.processes)
    if not job.emulates_links:
        ratio = min(ratio, _sendable_ratio(job, costs, scale, durations, sends))
    design = _shrink_messages(job.design, ratio)
    links = "links are emulated; " if job.emulates_links else ""
    sent = largest * boundary_tensor(design).bytes / boundary_tensor(job.design).bytes
    numbers = {"message_bytes": sent, "modelled_message_bytes": largest}
    if design is job.design:
        return design, RunNote(
            f"{links}messages have their full size (up to {quantity(sent, 'B')} per process)", numbers
        )
    reason = "hold larger ones" if job.emulates_links else "send larger ones in the modelled time"
    text = (
        f"{links}messages are smaller than modelled (at most {quantity(sent, 'B')} instead of {quantity(largest, 'B')} "
        f"per process), because this machine cannot {reason}; their modelled duration is unchanged"
    )
    return design, RunNote(text, numbers)


def padded_message_lengths(design: Design, smaller: Design) -> dict[int, int]:
    """Return the tokens of the sequences of every microbatch in the design with smaller messages.

    The result is empty if all microbatches are whole.
    """
    lengths, parts, sequence = padded_lengths(design), length_parts(design), smaller.model.sequence
    if lengths is None:
        return {}
    sizes = np.ceil(lengths * (sequence / design.model.sequence / parts)).astype(int) * parts
    return dict(enumerate(np.minimum(sizes, sequence).tolist()))


def _sendable_ratio(job: Job, costs: Costs, scale: float, durations: ActionDurations, sends: NDArray[np.intp]) -> float:
    """Return the fraction of each message's bytes that the loopback interface can send in the message's modelled time."""
    lanes = np.array([shape.dp * shape.tp for shape in job.layout.shapes])[job.program.rank[sends]]
    mesh_bytes = costs.bytes[sends] * lanes
    sendable = LOOPBACK_BYTES_PER_S * scale * (costs.seconds[sends] + LATENESS_FRACTION * durations.shortest)
    ratios = np.maximum(sendable, NEGLIGIBLE_BYTES * lanes) / mesh_bytes
    return min(float(ratios.min()), LOOPBACK_BYTES_PER_S * scale * durations.step / float(mesh_bytes.sum()))


def _exchange_ratio(job: Job, smaller: Design, waits: Waits, durations: ActionDurations) -> tuple[float, str]:
    """Return the fraction of the bytes of each collective inside an action that the dry run sends, and a note about it.

    Without such collectives the note is empty. With emulated links, only the memory of this machine limits the fraction.
    """
    flows, program = waits.flows, job.program
    if flows is None:
        return 1.0, ""
    columns = np.where(program.is_work, flows.first, -1), flows.beside
    first = np.concatenate([column[column >= 0] for column in columns])
    parts = np.concatenate([flows.network.parts[column >= 0] for column in columns])
    if not first.size:
        return 1.0, ""
    network = flows.network
    leaves = np.array([port.kind in ("link-out", "nic-out") for port in network.ports])[network.use_port]
    sent = np.add.reduceat(np.where(leaves, network.use_weight, 0.0), network.use_ptr[:-1])[flows.kind[first]]
    mesh_bytes = flows.size[first] * sent  # bytes of one exchange by all processes of a mesh
    largest = float(mesh_bytes.max())
    ratio = min(1.0, MESSAGE_MEMORY_FRACTION * total_memory_bytes() / (2 * largest * program.ranks))
    if not job.emulates_links:
        seconds = flows.size[first] / network.rate[flows.kind[first]]
        rate = COLLECTIVE_BYTES_PER_S * waits.scale
        ratio = min(
            ratio,
            rate / program.ranks * float((seconds / mesh_bytes).min()),  # all meshes may exchange at once
            rate * durations.step / float((mesh_bytes * parts).sum()),
            boundary_tensor(smaller).bytes / boundary_tensor(job.design).bytes,
        )
    if ratio >= 1:
        return 1.0, f"collectives inside stages have their full size (up to {quantity(largest, 'B')} per mesh at once)"
    return ratio, (
        f"collectives inside stages are smaller than modelled (at most {quantity(ratio * largest, 'B')} instead of "
        f"{quantity(largest, 'B')} per mesh at once), because this machine cannot send larger ones in the modelled time"
    )


def _shrink_messages(design: Design, ratio: float) -> Design:
    """Return a design whose messages have at most the fraction ``ratio`` of the bytes."""
    if ratio >= 1:
        return design
    model, divides = design.model, design.training.sequence_parallel
    parts = lcm(*(mesh.cp * (mesh.tp if divides else 1) for mesh in design.meshes))
    hidden = max(1, int(model.hidden * ratio))
    sequence = max(1, int(model.sequence / parts * min(1.0, ratio * model.hidden / hidden))) * parts
    return design.model_copy(update={"model": model.resize_messages(sequence, hidden)})
