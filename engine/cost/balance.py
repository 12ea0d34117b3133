"""How many layers each stage gets when the design leaves it open."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from engine.errors import InputError


def equal_split(layers: int, stages: int) -> tuple[int, ...]:
    """Layers of each stage, as equal as they can be; the first stages take what is left over.

    Raises:
        InputError: a stage would be left without a layer.
    """
    _refuse_empty_stages(layers, stages)
    share, over = divmod(layers, stages)
    return tuple(share + (stage < over) for stage in range(stages))


def balanced_split(layers: int, layer_seconds: Sequence[float], extra_seconds: Sequence[float]) -> tuple[int, ...]:
    """Layers of each stage such that the slowest stage is as fast as it can be.

    Stage ``s`` with ``n`` layers takes ``n * layer_seconds[s] + extra_seconds[s]``; the extras
    are the embedding and the head. As all layers cost the same, giving each next layer to the
    stage that is the fastest with it reaches the least maximum: a stage passes it only when all
    others would too. Within that maximum the layers are then spread as equally as they can be.

    Raises:
        InputError: a stage would be left without a layer.
    """
    _refuse_empty_stages(layers, len(layer_seconds))
    greedy = _hand_out(layers, layer_seconds, extra_seconds)
    slowest = max(_seconds(greedy, layer_seconds, extra_seconds))
    most = [
        max(1, int((slowest - extra) / each * (1 + 1e-12) + 1e-9)) if each else layers
        for each, extra in zip(layer_seconds, extra_seconds, strict=True)
    ]
    return _spread(layers, most, layer_seconds, extra_seconds)


def _refuse_empty_stages(layers: int, stages: int) -> None:
    if stages < 1:
        raise InputError("there are no stages to hold the layers; give every mesh a computation")
    if stages > layers:
        raise InputError(
            f"{stages} stages need at least {stages} layers, and the model has {layers}; "
            "use fewer stages or more layers"
        )


def _seconds(split: Sequence[int], layer_seconds: Sequence[float], extra_seconds: Sequence[float]) -> list[float]:
    return [n * each + extra for n, each, extra in zip(split, layer_seconds, extra_seconds, strict=True)]


def _hand_out(layers: int, layer_seconds: Sequence[float], extra_seconds: Sequence[float]) -> list[int]:
    split = [1] * len(layer_seconds)
    queue = [(2 * each + extra_seconds[stage], stage) for stage, each in enumerate(layer_seconds)]
    heapq.heapify(queue)
    for _ in range(layers - len(split)):
        seconds, stage = queue[0]
        split[stage] += 1
        heapq.heapreplace(queue, (seconds + layer_seconds[stage], stage))
    return split


def _spread(
    layers: int, most: Sequence[int], layer_seconds: Sequence[float], extra_seconds: Sequence[float]
) -> tuple[int, ...]:
    """Hand out layers to the stage with the fewest that may have more; of equals, to the fastest."""
    split = [1] * len(most)
    queue = [(1, each + extra_seconds[stage], stage) for stage, each in enumerate(layer_seconds)]
    heapq.heapify(queue)
    for _ in range(layers - len(split)):
        held, seconds, stage = heapq.heappop(queue)
        while held >= most[stage]:  # full: it does not come back
            held, seconds, stage = heapq.heappop(queue)
        split[stage] += 1
        heapq.heappush(queue, (held + 1, seconds + layer_seconds[stage], stage))
    return tuple(split)
