"""Seconds and bytes for every row of a program: what the simulator plays it against."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from meshwave.engine.costs.device_sizes import Sizes, bytes_of_kinds, sent_bytes, sizes
from meshwave.engine.costs.distinct_actions import Kinds, kinds
from meshwave.engine.costs.model_flops import model_flops
from meshwave.engine.costs.operators import PRECISIONS
from meshwave.engine.document import Design
from meshwave.engine.document.cost import CostSection, Unit
from meshwave.engine.findings import Problem
from meshwave.engine.program.program import Program
from meshwave.engine.program.shared_links import Network
from meshwave.engine.program.simulation import TransferModel, simulate, slot_sums
from meshwave.engine.program.timeline import Timeline

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Costs:
    """What every row of a program costs, and what the devices hold."""

    seconds: (
        Floats  # [rows] of a computation, REDUCE_GRAD or STEP, of a SEND its transfer; RECV 0; a slot takes its sum
    )
    bytes: Floats  # [rows] that one device sends in a SEND or reduces in a REDUCE_GRAD; else 0
    transfer_model: TransferModel
    unit: Unit  # of ``seconds``: unit costs are no seconds
    static_bytes: Mapping[str, Floats]  # [ranks] on one device: weights, gradients, optimizer
    gradient_bytes: Floats  # [ranks, stages] of them the gradients of each stage; 0 where a rank does not hold it
    sent_bytes: Floats  # [2, stages, microbatches] by which a forward and a backward change what was sent and is held
    activation_bytes: Floats  # [stages] one device keeps for a microbatch, from F to the end of B or I
    deferred_bytes: Floats  # [stages] one device keeps for a microbatch, from the end of I to the end of W
    working_bytes: Floats  # [ranks] on one device: largest transient and message buffers
    capacity_bytes: float  # of one device
    model_flops: float  # of the model in one iteration, forward and backward, the whole job
    peak_flops: float  # FLOP/s of all devices used
    samples: int  # sequences in one iteration
    tokens: int  # in one iteration
    layers: tuple[int, ...]  # [stages]
    network: Network | None = None  # whose links are shared; None where no flow disturbs another

    def play(self, program: Program, seconds: Floats | None = None, meshes: tuple[str, ...] | None = None) -> Timeline:
        """Simulate the program that was priced, with other ``seconds`` where some are given.

        A computation that takes half of its seconds takes half of what it exchanges, too.
        """
        network, given = self.network, self.seconds if seconds is None else seconds
        if network is not None and seconds is not None:
            before, after = slot_sums(program, self.seconds), slot_sums(program, seconds)
            ratio = np.divide(after, before, out=np.ones(len(program)), where=before > 0)
            network = network.with_exchanges(network.exchange_s * ratio)
        alone = self.play_alone(program) if network is not None and seconds is None else None
        return simulate(program, given, self.transfer_model, meshes, network=network, alone=alone)

    def play_alone(self, program: Program) -> Timeline:
        """Simulate the program that was priced on links that are free; the answer is kept."""
        known = self.__dict__.get("_alone")
        if known is None or known.digest != program.digest:
            known = self.__dict__["_alone"] = simulate(program, self.seconds)
        return cast(Timeline, known)


class Slots(NamedTuple):
    """One of the two actions of each slot."""

    seconds: Floats  # [slots] alone
    waits: Floats  # [slots] of them those in which it waits for messages inside it


class CostModel(CostSection, ABC):
    """A way to price a program. A member is one file in ``costs/models``.

    Its fields are its keys in the document and its form on the page, ``kind`` and ``transfer_model`` among them;
    its docstring is its help text.
    """

    @abstractmethod
    def layers_per_stage(self, design: Design) -> tuple[int, ...]:
        """The layers of each stage where the design leaves them open."""

    def sizes(self, design: Design, program: Program, layers: tuple[int, ...]) -> Sizes:
        """What the devices hold."""
        return sizes(design, program, layers)

    def peak_flops(self, design: Design) -> float:
        """Peak FLOP/s of one device, the denominator of MFU."""
        return design.cluster.device.peak_flops

    @abstractmethod
    def seconds(self, design: Design, program: Program, kinds: Kinds, layers: tuple[int, ...], held: Sizes) -> Floats:
        """``[kinds]`` for each distinct action of the program; see :class:`Costs`."""

    def waits(self, design: Design, program: Program, kinds: Kinds, layers: tuple[int, ...]) -> Floats:
        """``[kinds]`` of the seconds of a computation those in which it waits for messages inside it: the exchanges
        of experts and the reductions of tensor-parallel layers."""
        return np.zeros(len(kinds))

    def network(
        self, design: Design, program: Program, kinds: Kinds, layers: tuple[int, ...], held: Sizes, seconds: Floats
    ) -> tuple[Network | None, Floats]:
        """Return the network that flows which take ``seconds`` [kinds] alone share, None if they share nothing; and
        [kinds] the seconds with what a port adds to a flow that is alone."""
        return None, seconds

    def slot_seconds(self, design: Design, first: Slots, second: Slots) -> Floats:
        """``[slots]`` how long a forward and a backward take that share a slot: one after the other, unless the model
        knows what of them overlaps."""
        return first.seconds + second.seconds

    def warnings(self, design: Design) -> Iterable[Problem]:
        """Warnings of what the model cannot price well in a design."""
        return ()


def pricing_model(design: Design) -> CostModel:
    """Return the cost model of a design, which is its ``cost`` section."""
    assert isinstance(design.cost, CostModel), "all members of the registry are"
    return design.cost


def layers_per_stage(design: Design) -> tuple[int, ...]:
    """The layers of each stage: as the design gives them, else balanced by its cost model.

    Raises:
        InputError: there are more stages than layers, or the profile that it is priced by is not there.
    """
    return design.pipeline.stages or pricing_model(design).layers_per_stage(design)


def estimate(design: Design, program: Program) -> Costs:
    """Price ``program``, which ``design`` was lowered to, by the cost model that it names.

    Raises:
        InputError: there are more stages than layers, or the profile that it is priced by is not there.
    """
    model = pricing_model(design)
    layers = layers_per_stage(design)
    held = model.sizes(design, program, layers)
    distinct = kinds(program)
    samples = design.sequences_per_step
    of_kinds = model.seconds(design, program, distinct, layers, held)
    transfer_model: TransferModel = "batched" if program.batched else design.cost.transfer_model
    shares = transfer_model in ("shared-links", "link-serial")
    network = None
    if shares:
        network, of_kinds = model.network(design, program, distinct, layers, held, of_kinds)
    seconds = of_kinds[distinct.of_row]
    size = bytes_of_kinds(design, distinct, held)[distinct.of_row]
    return Costs(
        seconds=_with_slots(model, design, program, seconds, layers),
        bytes=size,
        transfer_model=transfer_model,
        unit=model.unit,
        static_bytes=held.static_bytes,
        gradient_bytes=held.parameters * PRECISIONS[design.training.precision].gradients,
        sent_bytes=sent_bytes(program, size),
        activation_bytes=held.activation_bytes,
        deferred_bytes=held.deferred_bytes,
        working_bytes=held.working_bytes,
        capacity_bytes=design.cluster.device.memory_bytes,
        model_flops=model_flops(design.model, samples),
        peak_flops=model.peak_flops(design) * sum(len(mesh.devices) for mesh in design.meshes),
        samples=samples,
        tokens=samples * design.model.sequence,
        layers=layers,
        network=network,
    )


def waits(design: Design, program: Program, layers: tuple[int, ...]) -> Floats:
    """``[rows]`` of the seconds of a computation those in which it waits for messages inside it; 0 of all else.

    Separate from :func:`estimate`: a search for an order calls that often and never needs this.
    """
    distinct = kinds(program)
    return pricing_model(design).waits(design, program, distinct, layers)[distinct.of_row]


def _with_slots(model: CostModel, design: Design, program: Program, seconds: Floats, layers: tuple[int, ...]) -> Floats:
    """What a slot of two saves is taken off its second row, which can leave that below zero."""
    second = np.flatnonzero(program.fused)
    if not second.size:
        return seconds
    distinct = kinds(program)
    of_rows = model.waits(design, program, distinct, layers)[distinct.of_row]
    first = second - 1
    both = model.slot_seconds(design, *(Slots(seconds[rows], of_rows[rows]) for rows in (first, second)))
    seconds[second] = both - seconds[first]
    return seconds
