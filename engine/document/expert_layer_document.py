"""Documents of a single expert layer, for ``meshwave moe SPEC.json``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from meshwave.engine.document.architecture import Size
from meshwave.engine.document.cluster import MAX_DEVICES, Rate
from meshwave.engine.document.experts import Load, load_problems
from meshwave.engine.document.fixes import rename_key_fix
from meshwave.engine.document.model import MAX_EXPERTS, CapacityFactor
from meshwave.engine.document.reading import read_part
from meshwave.engine.errors import closest_word
from meshwave.engine.experts import Layer, Line, Links, load_shares
from meshwave.engine.findings import DesignError, Problem, set_key_fix
from meshwave.engine.frozen import Part, nullable

FORMAT: Literal["meshwave-expert-layer/1"] = "meshwave-expert-layer/1"
FITTED = ("all_to_all", "all_gather", "reduce_scatter", "all_reduce", "overlap")
GROUPS = ("mp", "esp", "ep", "ep_esp")
Ranks = Annotated[int, Field(ge=1, le=MAX_DEVICES)]
Seconds = Annotated[float, Field(ge=0, le=1e6)]


class LayerLink(Part):
    """Connection that takes ``latency_s + bytes / bandwidth``."""

    latency_s: Seconds
    """Fixed seconds per message (alpha)."""
    bandwidth: Rate | None = nullable("bytes are free", ...)
    """Bandwidth of one rank in one direction, in bytes/s."""

    @property
    def line(self) -> Line:
        """Alpha and beta of the link."""
        return Line(self.latency_s, 1 / self.bandwidth if self.bandwidth else 0.0)


class LayerLinks(Part):
    """Links inside a node and between nodes."""

    intra_node: LayerLink
    inter_node: LayerLink


class FittedLine(Part):
    """Measured duration of a collective: ``alpha_s + bytes * beta_s_per_byte``."""

    alpha_s: Seconds
    beta_s_per_byte: Annotated[float, Field(ge=0, le=1e6)]


class ExpertLayerSpec(Part):
    """One expert layer on ranks that are numbered like those of a mesh.

    ``esp`` and ``mp`` groups have adjacent ranks, an ``ep`` group has every ``esp``-th rank, and a node has adjacent
    ranks.
    """

    format: Literal["meshwave-expert-layer/1"]
    """Version of the document format."""
    ranks: Ranks
    """P: number of ranks of the layer."""
    ranks_per_node: Ranks
    """G: number of ranks of a node."""
    mp: Ranks
    """N_MP: number of ranks with the same tokens (tensor parallel)."""
    esp: Ranks
    """N_ESP: number of ranks that share one expert."""
    ep: Ranks
    """N_EP: number of rank groups that hold different experts."""
    experts: Annotated[int, Field(ge=1, le=MAX_EXPERTS)]
    """E: number of experts of the layer."""
    batch: Size
    """B: number of samples of one ``mp`` group."""
    sequence: Size
    """L: number of tokens of a sample."""
    hidden: Size
    """M: hidden size (width of a token's vector)."""
    ffn_hidden: Size
    """H: inner width of an expert."""
    top_k: Size = 1
    """k: number of experts per token."""
    capacity_factor: CapacityFactor | None = nullable("no token is dropped", 1.0)
    """f: slots of an expert relative to an even share of the token assignments."""
    item_bytes: Annotated[int, Field(ge=1, le=16)] = 4
    """Bytes of one element."""
    load: Load | None = nullable("uniform")
    """Distribution of tokens over experts: uniform, zipf, or one share per expert."""
    links: LayerLinks
    fit: Mapping[str, FittedLine] | None = None
    """Measured alpha-beta fits of collectives, used instead of the links. Keys: all_to_all, all_gather (size: all
    gathered bytes), reduce_scatter, all_reduce and overlap (an all-to-all that hides an all-gather), each for all
    groups or, with @ep, @esp or @mp appended, for groups of one kind."""

    @property
    def layer(self) -> Layer:
        """The expert layer with all sizes resolved."""
        return Layer(
            mp=self.mp,
            ep=self.ep,
            esp=self.esp,
            experts=self.experts,
            tokens=self.batch * self.sequence,
            hidden=self.hidden,
            ffn_hidden=self.ffn_hidden,
            top_k=self.top_k,
            capacity_factor=self.capacity_factor,
            item_bytes=self.item_bytes,
            nodes=tuple(rank // self.ranks_per_node for rank in range(self.ranks)),
            load=load_shares(self.load, self.experts),
        )

    @property
    def lines(self) -> Links:
        """Links and measured lines for pricing."""
        fit = {name: Line(line.alpha_s, line.beta_s_per_byte) for name, line in (self.fit or {}).items()}
        return Links(self.links.intra_node.line, self.links.inter_node.line, fit or None)


def expert_layer_problems(spec: ExpertLayerSpec) -> Iterator[Problem]:
    """Yield problems of a layer with individually valid keys that no schedule can run."""
    needed = spec.ep * spec.esp
    if needed != spec.ranks:
        key, value = ("ep", spec.ranks // spec.esp) if spec.ranks % spec.esp == 0 else ("ranks", needed)
        sizes = {"ep": spec.ep, "esp": spec.esp, "needed": needed, "ranks": spec.ranks}
        fixes = [set_key_fix(key, value)]
        yield Problem("ep", "rank_count", {**sizes, "advice": f"set {key} to {value}"}, fixes=fixes)
    elif wrong := [*load_problems(spec.load, spec.experts)]:
        yield from wrong
    else:
        yield from spec.layer.problems()
    yield from _fit_problems(spec)


def _fit_problems(spec: ExpertLayerSpec) -> Iterator[Problem]:
    """Yield problems of measured lines for collectives or groups that do not exist."""
    for key in spec.fit or ():
        name, _, group = key.partition("@")
        if name not in FITTED:
            suggestion = closest_word(name, FITTED)
            params = {"name": name, "known": list(FITTED), "suggestion": suggestion}
            yield _fit_problem(spec, key, "unknown_collective", params, suggestion and key.replace(name, suggestion, 1))
        elif group and group not in GROUPS or key.endswith("@"):
            suggestion = closest_word(group, GROUPS)
            params = {"name": group, "known": list(GROUPS), "suggestion": suggestion}
            yield _fit_problem(spec, key, "unknown_group", params, suggestion and f"{name}@{suggestion}")


def _fit_problem(spec: ExpertLayerSpec, key: str, code: str, params: dict[str, Any], name: str | None) -> Problem:
    assert spec.fit is not None
    where = f"fit.{key}"
    is_free = name is not None and name not in spec.fit
    fixes = [rename_key_fix(where, spec.fit[key].model_dump(mode="json"), name)] if name and is_free else []
    return Problem(where, code, params, fixes=fixes)


def parse_expert_layer(text: str | bytes) -> ExpertLayerSpec:
    """Parse the document of one expert layer.

    Raises:
        DesignError: the document is invalid; the error lists every problem with its path.
    """
    spec = read_part(text, ExpertLayerSpec, "layer", "ranks, groups, sizes and links")
    if found := list(expert_layer_problems(spec)):
        raise DesignError(found)
    return spec
