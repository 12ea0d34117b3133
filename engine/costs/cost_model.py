"""Cost models, which assign seconds and bytes to every row of a program."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.costs.device_sizes import Sizes, device_sizes, message_bytes_by_kind, sent_byte_changes
from meshwave.engine.costs.distinct_actions import Kinds, distinct_kinds
from meshwave.engine.costs.gradient_buckets import bucket_sizes, uses_buckets
from meshwave.engine.costs.microbatch_prices import (
    Price,
    length_scale,
    microbatch_scale,
    padded_seconds,
    remember_prices,
)
from meshwave.engine.costs.model_flops import model_flops
from meshwave.engine.costs.operators import element_sizes
from meshwave.engine.costs.packed_documents import mean_attended_share
from meshwave.engine.costs.padded_documents import document_attended_share, sequence_lengths
from meshwave.engine.costs.sharding import reduction_rounds
from meshwave.engine.costs.stage_balance import keep_at_end
from meshwave.engine.document import Design
from meshwave.engine.document.cost import CostSection, Unit
from meshwave.engine.findings import Problem
from meshwave.engine.frozen import option_labels
from meshwave.engine.program.action import Op
from meshwave.engine.program.program import Program
from meshwave.engine.program.shared_links import Network
from meshwave.engine.program.simulation import TransferModel, simulate, slot_sums
from meshwave.engine.program.timeline import Timeline

Floats = NDArray[np.float64]
TRANSFER_MODEL_LABELS = option_labels(
    {
        "shared-links": "Shared links",
        "latency": "Latency only",
        "sender-blocking": "Sender blocking",
        "link-serial": "Serial links",
        "half-duplex": "Half-duplex",
        "batched": "Batched send and receive",
    }
)
"""Labels of the transfer models."""


@dataclass(frozen=True, eq=False)
class Costs:
    """Costs of every row of a program, and memory of the devices."""

    seconds: (
        Floats  # [rows] seconds of compute, collectives and STEP, of the transfer of a SEND; 0 for others; slots sum
    )
    overlap_saved: Floats  # [rows] seconds by which a slot is shorter than the sum of its actions, at its second row
    bytes: Floats  # [rows] bytes that one device sends in a SEND, reduces or gathers; otherwise 0
    transfer_model: TransferModel
    unit: Unit  # unit of ``seconds``: s, or the unit of unit costs
    static_bytes: Mapping[str, Floats]  # [ranks] bytes on one device: weights, gradients, optimizer
    gradient_bytes: Floats  # [ranks, stages] gradient bytes of each stage; 0 if a rank does not hold it
    reduced_bytes: Floats  # [ranks, stages] additional gradient bytes after a REDUCE_GRAD
    unsharded_bytes: Floats  # [ranks, stages] weight bytes between an UNSHARD and a RESHARD
    sent_bytes: Floats  # [2, stages, microbatches] change of unacknowledged sent bytes at each forward and backward
    activation_bytes: Floats  # [stages] bytes that one device keeps for a microbatch, from F to the end of B or I
    deferred_bytes: Floats  # [stages] bytes that one device keeps for a microbatch, from the end of I to the end of W
    working_bytes: Floats  # [ranks] bytes on one device: largest transient and message buffers
    capacity_bytes: float  # memory of one device
    model_flops: float  # FLOPs of the model in one iteration, forward and backward, all devices together
    peak_flops: float  # FLOP/s of all used devices
    samples: int  # sequences in one iteration
    tokens: int  # tokens in one iteration
    layers: tuple[int, ...]  # [stages] layers of each stage
    network: Network | None = None  # None if transfers do not share links
    lead: Floats | None = None  # [rows] see :func:`~meshwave.engine.program.simulation.simulate`; None without buckets

    def simulate(
        self, program: Program, seconds: Floats | None = None, meshes: tuple[str, ...] | None = None
    ) -> Timeline:
        """Simulate the priced program, with other ``seconds`` if they are given.

        The collectives inside an action scale with its seconds.
        """
        network, given = self.network, self.seconds if seconds is None else seconds
        if network is not None and seconds is not None:
            before, after = slot_sums(program, self.seconds), slot_sums(program, seconds)
            ratio = np.divide(after, before, out=np.ones(len(program)), where=before > 0)
            network = network.scale_exchanges(ratio)
        alone = self.simulate_without_sharing(program) if network is not None and seconds is None else None
        return simulate(program, given, self.transfer_model, meshes, network=network, alone=alone, lead=self.lead)

    def scale_latencies(self, program: Program, factors: Floats) -> Costs:
        """Return the costs with scaled latencies of messages and collectives, ``factors [rows]``, for scaled seconds.

        Otherwise :meth:`simulate` counts longer seconds as more bytes, which messages on the same link wait for.
        """
        scales = ~program.is_work & (factors != 1)
        if self.network is None or not scales[self.network.flow_rows].any():
            return self
        return replace(self, network=self.network.scale_latencies(np.where(scales, factors, 1.0)))

    def simulate_without_sharing(self, program: Program) -> Timeline:
        """Simulate the priced program without link sharing; the result is cached."""
        known = self.__dict__.get("_alone")
        if known is None or known.digest != program.digest:
            known = self.__dict__["_alone"] = simulate(program, self.seconds, lead=self.lead)
        return cast(Timeline, known)


class CostModel(CostSection, ABC):
    """Interface of cost models. A member is one file in ``costs/models``.

    Its fields, including ``kind`` and ``transfer_model``, are its keys in the document and its form on the page; its
    docstring is its help text.
    """

    uses_device_constants: ClassVar[bool] = False
    """True if the fitted constants of a device price the computations."""

    @abstractmethod
    def layers_per_stage(self, design: Design) -> tuple[int, ...]:
        """Return the layers of each stage for a design that does not set them."""

    def sizes(self, design: Design, program: Program, layers: tuple[int, ...], device: int | None = None) -> Sizes:
        """Return the memory that the fullest devices need, or a ``device`` of each group that shares experts."""
        return device_sizes(design, program, layers, device)

    def peak_flops(self, design: Design) -> float:
        """Return the peak FLOP/s of one device, which is the denominator of MFU."""
        return design.cluster.device.peak_flops

    @abstractmethod
    def seconds(self, design: Design, program: Program, kinds: Kinds, layers: tuple[int, ...], held: Sizes) -> Floats:
        """Return the seconds of each distinct action of the program, ``[kinds]``; see :class:`Costs`."""

    def wait_seconds(self, design: Design, program: Program, kinds: Kinds, layers: tuple[int, ...]) -> Floats:
        """Return the seconds for which each computation waits for collectives inside it, ``[kinds]``.

        These collectives are expert exchanges, tensor-parallel reductions and context-parallel exchanges.
        """
        return np.zeros(len(kinds))

    def network(
        self, design: Design, program: Program, kinds: Kinds, layers: tuple[int, ...], held: Sizes, seconds: Floats
    ) -> tuple[Network | None, Floats]:
        """Return the network that flows share, and the seconds that each flow takes on it alone, ``[kinds]``.

        The network is None if flows share nothing. A flow takes longer than the ``seconds`` given for it if a port is
        slower.
        """
        return None, seconds

    def slot_seconds(
        self,
        design: Design,
        program: Program,
        kinds: Kinds,
        layers: tuple[int, ...],
        seconds: Floats,
        pairs: NDArray[np.int64],
    ) -> Floats:
        """Return the seconds of a forward and a backward that share a slot, ``[slots]``.

        By default they run one after the other.

        Args:
            design: the design.
            program: the program of the design.
            kinds: distinct actions of the program.
            layers: layers of each stage.
            seconds: [kinds] seconds of each action alone.
            pairs: [slots, 2] kinds of the forward and the backward of each slot.
        """
        return np.asarray(seconds[pairs].sum(axis=1))

    def remaining_shares(self, design: Design, program: Program, layers: tuple[int, ...]) -> Floats:
        """Return the share of the last computation of a stage after each bucket of gradients, ``[buckets, stages]``.

        By default, buckets are reduced after it.
        """
        return np.zeros((design.training.gradient_buckets, program.stages))

    def warnings(self, design: Design) -> Iterable[Problem]:
        """Yield warnings for parts of a design that the model prices inaccurately."""
        return ()


def pricing_model(design: Design) -> CostModel:
    """Return the cost model in the ``cost`` section of a design."""
    assert isinstance(design.cost, CostModel), "all members of the registry are"
    return design.cost


def layers_per_stage(design: Design) -> tuple[int, ...]:
    """Return the layers of each stage: those of the design, or otherwise a split balanced by its cost model.

    Raises:
        InputError: there are more stages than layers, or the calibration profile is missing.
    """
    found = design.pipeline.stages or pricing_model(design).layers_per_stage(design)
    return keep_at_end(found, design.model.architecture.mtp_layers)


def estimate(design: Design, program: Program) -> Costs:
    """Price a ``program``, lowered from ``design``, by the cost model of the design.

    Raises:
        InputError: there are more stages than layers, or the calibration profile is missing.
    """
    model = pricing_model(design)
    layers = layers_per_stage(design)
    held = model.sizes(design, program, layers)
    held = held._replace(buckets=bucket_sizes(design, layers, held))
    distinct = distinct_kinds(program)
    samples, lengths = design.sequences_per_step, sequence_lengths(design)
    tokens = samples * (design.model.sequence if lengths is None else float(lengths.mean()))
    price = remember_prices(lambda other: model.seconds(other, program, distinct, layers, held))
    alone = of_kinds = model.seconds(design, program, distinct, layers, held)
    scale = microbatch_scale(design, program, alone, price)
    transfer_model: TransferModel = "batched" if program.batched else design.cost.transfer_model
    network = None
    if transfer_model in ("shared-links", "link-serial"):
        network, of_kinds = model.network(design, program, distinct, layers, held, alone)
    seconds = of_kinds[distinct.of_row] * scale
    if network is not None and lengths is not None:  # unlike computations, waits are linear in the length
        whole = model.wait_seconds(design, program, distinct, layers)[distinct.of_row]
        padded = wait_seconds(design, program, layers)
        seconds += (of_kinds - alone)[distinct.of_row] * np.where(whole > 0, _ratio(padded, whole) - scale, 0.0)
        exchanges = _ratio(slot_sums(program, padded), slot_sums(program, whole))
        network = network.scale_exchanges(exchanges, beside=False)
    if network is not None and network.beside_s.any():  # short documents do not shorten gathers and scatters
        seconds += np.maximum(0.0, network.beside_s - slot_sums(program, seconds))
    attended = mean_attended_share(design) if lengths is None else document_attended_share(design)
    size = message_bytes_by_kind(design, distinct, held)[distinct.of_row] * length_scale(design, program)
    saved = _slot_savings(model, design, program, of_kinds, layers, price)
    return Costs(
        seconds=seconds - saved,
        overlap_saved=saved,
        bytes=size,
        transfer_model=transfer_model,
        unit=model.unit,
        **_memory_costs(design, held),
        sent_bytes=sent_byte_changes(program, size),
        capacity_bytes=design.cluster.device.memory_bytes,
        model_flops=model_flops(design.model, tokens / design.model.sequence, attended),
        peak_flops=model.peak_flops(design) * sum(len(mesh.devices) for mesh in design.meshes),
        samples=samples,
        tokens=round(tokens),
        layers=layers,
        network=network,
        lead=_reduction_leads(model, design, program, layers),
    )


def _memory_costs(design: Design, held: Sizes) -> dict[str, Any]:
    """Return the fields of :class:`Costs` that describe the memory of one device of each rank."""
    item = element_sizes(design.training).gradients
    return {
        "static_bytes": held.static_bytes,
        "gradient_bytes": (held.own if design.training.scatters_blocks else held.parameters) * item,
        "reduced_bytes": (held.reduced if reduction_rounds(design) == 2 else held.own) * item,
        "unsharded_bytes": held.computed_bytes,
        "activation_bytes": held.activation_bytes,
        "deferred_bytes": held.deferred_bytes,
        "working_bytes": held.working_bytes,
    }


def costs_of_device(design: Design, program: Program, costs: Costs, device: int) -> Costs:
    """Return the costs of a program with the memory of a ``device`` of each group that shares experts."""
    held = pricing_model(design).sizes(design, program, costs.layers, device)
    return replace(costs, **_memory_costs(design, held))


def _reduction_leads(model: CostModel, design: Design, program: Program, layers: tuple[int, ...]) -> Floats | None:
    """Return the share of a stage's last computation that remains when a reduction begins, ``[rows]``."""
    if not uses_buckets(design):
        return None
    lead, rows = np.zeros(len(program)), np.flatnonzero(program.op == Op.REDUCE_GRAD)
    lead[rows] = model.remaining_shares(design, program, layers)[program.bucket[rows], program.stage[rows]]
    return lead


def wait_seconds(design: Design, program: Program, layers: tuple[int, ...]) -> Floats:
    """Return the seconds for which each computation waits for collectives inside it, ``[rows]``; 0 for other actions.

    For a slot, they include waits in which the other action computes. With padded documents, they are those of the length
    of each microbatch. Order searches need them for these only, so :func:`estimate` does not keep them.
    """
    model, distinct = pricing_model(design), distinct_kinds(program)

    def price(other: Design) -> Floats:
        return model.wait_seconds(other, program, distinct, layers)

    found = padded_seconds(design, program, program.row_microbatch, distinct.of_row, price)
    return price(design)[distinct.of_row] if found is None else np.where(program.is_compute, found, 0.0)


def _ratio(some: Floats, whole: Floats) -> Floats:
    """Return ``some / whole``, or 1 where ``whole`` is 0."""
    return np.divide(some, whole, out=np.ones(len(whole)), where=whole > 0)


def _slot_savings(
    model: CostModel, design: Design, program: Program, seconds: Floats, layers: tuple[int, ...], alone: Price
) -> Floats:
    """Return the seconds that each slot saves, ``[rows]``, at its second row; ``seconds`` are those without overlap.

    With padded documents, a slot saves as much as one of two microbatches of the shorter length, which ``alone`` prices
    without overlap; with packed ones, as much as microbatches with the mean attention.
    """
    savings = np.zeros(len(program))
    second = np.flatnonzero(program.fused)
    if not second.size:
        return savings
    distinct = distinct_kinds(program)
    of_slots = distinct.of_row[np.stack([second - 1, second], axis=1)].astype(np.int64)
    pairs, number = np.unique(of_slots, axis=0, return_inverse=True)
    number = number.reshape(-1)

    def saved(other: Design, in_turn: Floats) -> Floats:
        both = model.slot_seconds(other, program, distinct, layers, in_turn, pairs)
        return np.asarray(in_turn[pairs].sum(axis=1) - both)

    of_both = program.row_microbatch[np.concatenate([second - 1, second])]
    padded = padded_seconds(
        design, program, of_both, np.concatenate([number, number]), lambda other: saved(other, alone(other))
    )
    savings[second] = saved(design, seconds)[number] if padded is None else padded.reshape(2, -1).min(axis=0)
    return savings
