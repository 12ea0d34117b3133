"""Calibrated costs: seconds from a calibration profile where it covers the design, otherwise roofline costs.

:mod:`meshwave.engine.costs.profile_coverage` lists the parts of a design that a profile does not cover.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import numpy as np

from meshwave.engine.costs import transformer_layers as flops
from meshwave.engine.costs.contention import LinkSharing, link_sharing
from meshwave.engine.costs.cost_model import TRANSFER_MODEL_LABELS, Floats
from meshwave.engine.costs.device_sizes import Sizes, device_workload, skip_joins_per_stage, stage_copies
from meshwave.engine.costs.distinct_actions import Kinds
from meshwave.engine.costs.expert_blocks import expert_layers_per_stage
from meshwave.engine.costs.models.roofline import OperatorCost, RooflineCost
from meshwave.engine.costs.operators import Operator
from meshwave.engine.costs.profile import ActionTime, BlockKind, OpName, OptimizerLine, Profile
from meshwave.engine.costs.profile_coverage import coverage_warnings
from meshwave.engine.costs.profile_prices import (
    MeasuredPrices,
    Slowness,
    matrix_rate,
    measured_collective,
    measured_design,
)
from meshwave.engine.costs.profile_store import (
    DEFAULT_PROFILE,
    describe_other_machine,
    list_profiles,
    load_stored_profile,
)
from meshwave.engine.costs.reductions import norm_seconds, reduce_seconds, update_exchange_seconds
from meshwave.engine.costs.stage_prices import MeshPrices
from meshwave.engine.document import Design, Mesh
from meshwave.engine.document.cost import cost_models
from meshwave.engine.document.model import LanguageModel
from meshwave.engine.errors import InputError
from meshwave.engine.findings import DesignError, Fix, Problem, Refusal, set_key_fix
from meshwave.engine.frozen import FileName, option_labels
from meshwave.engine.program.action import Op
from meshwave.engine.program.program import Program
from meshwave.engine.program.shared_links import Network
from meshwave.engine.program.simulation import TransferModel


@cost_models.register("calibrated")
class CalibratedCost(OperatorCost):
    """Costs from measured tables."""

    title: ClassVar = "Calibrated"

    kind: Literal["calibrated"] = "calibrated"
    """Seconds from a measured profile."""
    profile: FileName
    """File name of a stored profile."""
    links: Annotated[
        Literal["measured", "drawn"], option_labels({"measured": "Measured", "drawn": "Drawn cluster"})
    ] = "measured"
    """Links that determine the duration of messages. measured: those of the profile. drawn: those of the drawn cluster,
    which may differ from the measured links."""
    transfer_model: Annotated[TransferModel, TRANSFER_MODEL_LABELS] = "shared-links"
    """Effect of transfers on each other and on computations. shared-links: transfers and collectives share NICs and
    links. latency: no transfer delays another. sender-blocking: a transfer occupies its sender. link-serial: a NIC
    carries one transfer at a time. half-duplex: the two directions between two meshes share their bandwidth. batched:
    an adjacent send and receive between two meshes form one batch, and both meshes wait until the batch is done."""

    # ---- facts ----

    @property
    def profile_name(self) -> str:
        return self.profile

    @property
    def links_are_drawn(self) -> bool:
        return self.links == "drawn"

    def use_drawn_links(self) -> CalibratedCost:
        return self.model_copy(update={"links": "drawn"})

    def portable_model(self) -> RooflineCost:
        """Return roofline costs, because a profile is valid only on its machine."""
        return RooflineCost(stage_costs=self.stage_costs)

    def external_data(self) -> str:
        return self.load().model_dump_json()

    def fit_error(self) -> float | None:
        return self.load().worst_residual

    def machine_warning(self) -> str:
        return describe_other_machine(self.load())

    def warnings(self, design: Design) -> Sequence[Problem]:
        """Return a warning for each part of a design that the profile does not cover."""
        return coverage_warnings(design, self.load())

    @classmethod
    def initial_values(cls) -> Mapping[str, Any]:
        """Return the profile of this machine, or another stored profile."""
        names = list_profiles()
        return {"profile": DEFAULT_PROFILE if DEFAULT_PROFILE in names else names[0]} if names else {}

    def choices(self, key: str) -> Sequence[str]:
        """Return the stored profiles, and the profile that the design names even if it is missing."""
        return list(dict.fromkeys((*list_profiles(), self.profile))) if key == "profile" else []

    def load(self) -> Profile:
        """Load the profile; its links and collectives are removed if the design uses those of the cluster.

        Raises:
            DesignError: the profile is missing or invalid.
        """
        where, fixes = "cost.profile", [Fix("use_roofline", {}, (("cost", {"kind": "roofline"}),))]
        try:
            found = load_stored_profile(self.profile)
        except Refusal as error:
            suggestion = error.problem.params.get("suggestion")
            near = [set_key_fix(where, suggestion)] if suggestion else []
            raise DesignError([error.problem.replace(where=where, fixes=(*near, *fixes))]) from None
        except DesignError as error:
            params = {"name": self.profile, "problem": str(error.problems[0])}
            raise DesignError([Problem(where, "invalid_profile", params, fixes=fixes)]) from None
        except InputError as error:
            params = {"name": self.profile, "reason": str(error)}
            raise DesignError([Problem(where, "unreadable_profile", params, fixes=fixes)]) from None
        return _remove_links(found) if self.links_are_drawn else found

    # ---- prices ----

    def insert_measured_rates(self, design: Design) -> Design:
        return measured_design(design, self.load())

    def prices(self, design: Design) -> list[MeshPrices]:
        return super().prices(self.insert_measured_rates(design))

    def prices_on(self, design: Design, mesh: Mesh) -> MeshPrices:
        return MeasuredPrices(self.load(), design, mesh, device_workload(design, mesh))

    def seconds(self, design: Design, program: Program, kinds: Kinds, layers: tuple[int, ...], held: Sizes) -> Floats:
        profile = self.load()
        seconds = super().seconds(self.insert_measured_rates(design), program, kinds, layers, held)
        slowness = Slowness(profile.actions)
        experts = expert_layers_per_stage(design, layers)
        ends: dict[Op, OpName] = {Op.REDUCE_GRAD: "REDUCE_GRAD", Op.STEP: "STEP"}
        for op, name in ends.items():
            if name in slowness.ops:
                for row in kinds.indices_of(op).tolist():
                    rank = int(kinds.rank[row])
                    stages = [int(kinds.stage[row])] if op == Op.REDUCE_GRAD else program.stages_of(rank)
                    like = _action_key(name, design, layers, experts, stages, design.meshes[rank].tp)
                    seconds[row] *= slowness.of(like)
        return seconds

    def copy_seconds(self, design: Design, program: Program, layers: tuple[int, ...], held: Sizes) -> Floats:
        """Return the seconds of the copies; for a profile of a run, scaled by the measured slowness of a similar action.

        The ratios of a run are those of whole actions, whether computation or copies determine their duration.
        """
        profile, copies = self.load(), super().copy_seconds(design, program, layers, held)
        if profile.blocks or not profile.actions or not copies.any():
            return copies
        names: Sequence[OpName] = ("F", "B", "I")
        slowness, experts = Slowness(profile.actions), expert_layers_per_stage(design, layers)
        table = np.zeros((len(names), program.ranks, program.stages))
        for rank, stage in stage_copies(program):
            tp = design.meshes[rank].tp
            keys = [_action_key(name, design, layers, experts, [stage], tp) for name in names]
            table[:, rank, stage] = [copies[stage] * slowness.of(key) for key in keys]
        return table

    def network(
        self, design: Design, program: Program, kinds: Kinds, layers: tuple[int, ...], held: Sizes, seconds: Floats
    ) -> tuple[Network | None, Floats]:
        return super().network(self.insert_measured_rates(design), program, kinds, layers, held, seconds)

    def measures_collectives(self, design: Design) -> bool:
        return bool(self.load().collectives)

    def measures_stages(self, design: Design) -> bool:
        return super().measures_stages(design) or bool(self.load().actions)

    def link_sharing(self, design: Design) -> LinkSharing:
        return link_sharing(self.load().contention)

    def reduce_seconds(self, design: Design, program: Program, held: Sizes) -> Floats:
        return reduce_seconds(design, program, held, measured_collective(self.load()))

    def update_seconds(self, design: Design, held: Sizes) -> Floats:
        line = _optimizer_line(self.load(), design)
        if line is None:
            return super().update_seconds(design, held)
        return np.array([line.seconds(each) + norm_seconds(design) for each in held.own.sum(axis=1)])

    def update_exchange_seconds(self, design: Design, program: Program, held: Sizes) -> Floats:
        return update_exchange_seconds(design, program, held, measured_collective(self.load()))

    def sizes(self, design: Design, program: Program, layers: tuple[int, ...], device: int | None = None) -> Sizes:
        """Return the memory that devices need; activations are scaled by the measured ratio of allocated bytes."""
        held = super().sizes(design, program, layers, device)
        found = {each.kind: each.ratio for each in self.load().memory}
        if not found:
            return held
        ratios = [_activation_memory_ratio(design, layers, stage, found) for stage in range(program.stages)]
        return held._replace(activation_bytes=held.activation_bytes * ratios)

    def peak_flops(self, design: Design) -> float:
        """Return the measured rate of large matrix products in FLOP/s, or the device's peak if it was not measured."""
        return matrix_rate(self.load(), design.training.product_precision) or super().peak_flops(design)


def _action_key(
    op: OpName, design: Design, layers: Sequence[int], experts: Sequence[int], stages: Sequence[int], tp: int
) -> ActionTime:
    """Return the key by which the most similar measured action of some stages is found.

    ``layers`` and ``experts`` are the numbers of layers, and of layers with experts, of each stage.
    """
    return ActionTime(
        op=op,
        layers=sum(layers[stage] for stage in stages),
        experts=sum(experts[stage] for stage in stages),
        first=0 in stages,
        last=len(layers) - 1 in stages,
        recomputed=op in ("B", "I") and design.pipeline.recomputes(stages[0]),
        tp=tp,
        seconds=1.0,
        roofline_s=1.0,
    )


def _optimizer_line(profile: Profile, design: Design) -> OptimizerLine | None:
    """Return the measured line of the design's optimizer, preferably with the same precision, then the same clipping.

    For pure_bf16 that of bf16 is the second choice.
    """
    training = design.training
    clips, precisions = training.clip_norm is not None, (training.precision, training.product_precision)
    known = [line for line in profile.optimizer if line.optimizer == training.optimizer]
    return max(
        known, key=lambda line: (*(line.precision == each for each in precisions), line.clipped == clips), default=None
    )


def _activation_memory_ratio(
    design: Design, layers: Sequence[int], stage: int, ratios: Mapping[BlockKind, float]
) -> float:
    """Return the ratio of allocated to computed bytes of the activations of a stage.

    It is 1 for models whose blocks cannot be measured.
    """
    if not isinstance(design.model, LanguageModel):
        return 1.0
    load = device_workload(design, design.meshes[0])
    joins, experts = skip_joins_per_stage(design, layers)[stage], expert_layers_per_stage(design, layers)[stage]
    parts: list[tuple[BlockKind, int, Sequence[Operator]]] = [
        ("layer", layers[stage] - joins - experts, flops.layer_operators(load)),
        ("joining", joins, flops.joining_layer_operators(load)),
        ("experts", experts, flops.layer_operators(load)),
        ("embedding", int(stage == 0), flops.embedding_operators(load)),
        ("head", int(stage == len(layers) - 1), flops.end_operators(load, first=False, last=True)),
    ]
    said = [(kind, count * sum(each.kept_bytes for each in operators)) for kind, count, operators in parts]
    whole = sum(size for _, size in said)
    return sum(ratios.get(kind, 1.0) * size for kind, size in said) / whole if whole else 1.0


def _remove_links(profile: Profile) -> Profile:
    """Return a profile with only the measurements of single devices."""
    own = tuple(line for line in profile.links if line.pair == "same_device")
    return profile.model_copy(update={"links": own, "collectives": (), "contention": ()})
