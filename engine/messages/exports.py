"""Messages of exports: designs and timelines that a format cannot represent."""

from __future__ import annotations

from meshwave.engine.messages import Message

MESSAGES: dict[str, Message] = {
    "empty_timeline": "there is nothing to draw: the timeline has no spans",
    "empty_window": "the window {start:g} to {end:g} is empty; its end must be greater than its start",
    "too_many_blocks_for_svg": (
        "{blocks:,} blocks are too many for an SVG picture (at most {maximum:,}); draw a shorter window, or a PNG"
    ),
    "torchtitan_model": (
        "torchtitan supports only models of identical transformer layers without skip connections; set the model's kind to "
        "gpt or bert to export it"
    ),
    "torchtitan_placement": (
        "torchtitan derives the stage placement from the schedule name, and no schedule has this placement ({places}); it "
        "supports looped placement (1f1b, interleaved-1f1b) and a single V (hanayo with one wave, zb-v, dualpipe-v). Use "
        "one of these, or export torch-csv, which contains the placement"
    ),
    "unequal_meshes_for_torch": "{tool} needs equal meshes, but {meshes} differ; use the same axes on all meshes",
    "replicas_for_torch": (
        "torch's schedule CSV supports one rank per stage, and this design has {replicas} replicas of every stage; choose "
        "a schedule without replicas (one wave of hanayo instead of Chimera, or dualpipe-v instead of dualpipe) to export it"
    ),
    "skips_for_torch": (
        "torch's pipelining sends the output of a stage to the next one only, and here tensors skip from stage {source} "
        "to stage {target}; use two stages, or a model without skip connections, to export it"
    ),
    "loss_order_for_torch": (
        "torch numbers losses in the order in which the last stage runs its forwards, and rank {rank} runs {late} before "
        "{early}: a backward would start from the loss of another microbatch; let stage {stage} run its forwards in "
        "ascending order (backwards may have any order)"
    ),
}
