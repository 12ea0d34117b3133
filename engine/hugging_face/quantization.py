"""Quantized tensors in checkpoints: 8-bit blocks with scales (DeepSeek-V3), and MXFP4 (gpt-oss)."""

from __future__ import annotations

from collections.abc import Mapping

Shape = tuple[int, ...]

SCALED_BLOCK = 128
"""Rows, and columns, of a block of fp8 numbers with one scale (DeepSeek-V3, arXiv:2412.19437, section 3.3.2)."""
SCALES = "_scale_inv"
"""Ending of the name of a tensor of scales, after the name of the tensor that they scale."""
GROUP = 32
"""Number of values with one scale in MXFP4 (OCP Microscaling Formats, version 1.0); a byte holds two of them."""
GROUPS, GROUP_SCALES = "_blocks", "_scales"
"""Endings of the names of the two parts of a tensor of MXFP4."""
FP8_TYPE, SCALED_TYPE, MXFP4_TYPE = "F8_E4M3", "F8_E4M3 with scales", "MXFP4"


def join_quantized(shapes: Mapping[str, Shape], types: Mapping[str, str]) -> tuple[dict[str, Shape], dict[str, str]]:
    """Return shapes and types by name, with a quantized tensor and its scales as one tensor with the original shape."""
    joined, kinds = dict(shapes), dict(types)
    for name, shape in shapes.items():
        if types[name] == FP8_TYPE and shapes.get(name + SCALES) == tuple(-(-size // SCALED_BLOCK) for size in shape):
            kinds[name] = SCALED_TYPE
            del joined[name + SCALES], kinds[name + SCALES]
        whole = name.removesuffix(GROUPS)
        is_part = name != whole and len(shape) == 4 and shape[3] == GROUP // 2
        if is_part and shapes.get(whole + GROUP_SCALES) == shape[:3]:
            experts, outputs, groups = shape[:3]
            joined[whole], kinds[whole] = (experts, groups * GROUP, outputs), MXFP4_TYPE
            for part in (name, whole + GROUP_SCALES):
                del joined[part], kinds[part]
    return joined, kinds
