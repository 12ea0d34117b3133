"""Valid and invalid U-Net models, and the messages about invalid ones."""

from __future__ import annotations

from typing import Any

import pytest

from meshwave.engine.costs.boundary_transfers import boundary_tensor
from meshwave.engine.document import parse_design
from meshwave.engine.document.unsupported import run_problems
from meshwave.engine.errors import InputError
from meshwave.engine.exports.torchtitan import export_files
from meshwave.engine.files import example
from meshwave.engine.lowering.lower import lower
from meshwave.engine.program.program_file import from_json, to_json
from tests._findings import check_fixes, find_problems, refusal

Document = dict[str, Any]
LINK = {"latency_s": 1e-5, "bandwidth": 1e9}
MODEL: Document = {"kind": "u-net", "image_size": 16, "base_channels": 8, "channel_multipliers": [1, 2, 2], "heads": 2}


def u_net_document(
    *, tp: int = 1, training: Document | None = None, pipeline: Document | None = None, **model: Any
) -> Document:
    device = {"peak_flops": 5e10, "memory_bytes": 4e9, "memory_bandwidth": 1e10, "efficiency": 0.5}
    return {
        "format": "meshwave/1",
        "cluster": {
            "nodes": 1, "devices_per_node": 2 * tp, "device": device, "intra_node": LINK, "inter_node": LINK,
        },
        "model": {**MODEL, **model},
        "meshes": [
            {"name": name, "devices": list(range(at * tp, (at + 1) * tp)), "axes": {"dp": 1, "tp": tp}}
            for at, name in enumerate("AB")
        ],
        "pipeline": pipeline or {"schedule": "1f1b", "microbatches": 4},
        "training": training or {},
    }  # fmt: skip


def test_layers_of_a_u_net_are_its_blocks_and_mirrored_ones_are_linked() -> None:
    model = parse_design(u_net_document(blocks_per_level=2)).model

    assert model.layers == 13
    assert model.skips == ((0, 12), (1, 11), (2, 10), (3, 9), (4, 8), (5, 7))
    assert [block.side for block in model.blocks] == [16, 16, 8, 8, 4, 4, 4, 4, 4, 8, 8, 16, 16]
    assert [block.outer for block in model.blocks] == [8, 8, 16, 16, 16, 16, 16, 16, 16, 16, 16, 8, 8]


def test_a_u_net_is_valid_and_can_run() -> None:
    design = parse_design(u_net_document(attention_resolutions=[8, 4]))

    assert run_problems(design) == []
    assert parse_design(design.to_json()) == design


@pytest.mark.parametrize(
    ("changes", "where", "code"),
    [
        ({"image_size": 10}, "model.image_size", "indivisible_image_size"),
        ({"attention_resolutions": [8, 5]}, "model.attention_resolutions", "unknown_resolution"),
        ({"heads": 3}, "model.heads", "indivisible_channels"),
        ({"hidden": 64}, "model.hidden", "unknown_key"),
        ({"kind": "unet"}, "model.kind", "unknown_kind"),
        ({"channel_multipliers": []}, "model.channel_multipliers", "empty_list"),
    ],
)
def test_an_invalid_model_is_refused_at_its_key(changes: Document, where: str, code: str) -> None:
    document = u_net_document(**changes)

    problem = refusal(lambda: parse_design(document))

    assert (problem.where, problem.code) == (where, code)
    check_fixes(document, [problem])


def test_tensor_parallelism_is_refused() -> None:
    document = u_net_document(tp=2)

    found = find_problems(document)

    code = "unsupported_tensor_parallelism"
    assert [(each.where, each.code) for each in found] == [("meshes[0].axes.tp", code), ("meshes[1].axes.tp", code)]
    check_fixes(document, found)


def test_a_text_to_train_on_is_refused() -> None:
    problem = refusal(lambda: parse_design(u_net_document(training={"data": "book.txt"})))

    assert (problem.where, problem.code) == ("training.data", "unused_data")


def test_more_stages_than_blocks_are_refused() -> None:
    pipeline = {"schedule": "interleaved-1f1b", "chunks": 4, "microbatches": 4}

    problem = refusal(lambda: parse_design(u_net_document(pipeline=pipeline)))

    assert (problem.code, problem.params) == ("too_few_layers", {"stages": 8, "layers": 7})
    assert problem.fixes == (), "the layers of a U-Net follow from its levels"


def test_the_program_in_a_run_folder_keeps_the_message_sizes() -> None:
    program = lower(parse_design(u_net_document()))

    again = from_json(to_json(program))

    assert again == program
    assert again.onward_units.tolist() == program.onward_units.tolist() != [1]
    assert "onward" not in to_json(lower(parse_design(example("03-gpt-on-two-cores").read_bytes())))


def test_a_dry_run_can_send_smaller_messages() -> None:
    """The number of message units is the same, and each unit is smaller."""
    design = parse_design(u_net_document())
    smaller = design.model_copy(update={"model": design.model.resize_messages(1, 3)})

    assert boundary_tensor(design, 17).shape == (1, 1, 17 * design.model.hidden)
    assert boundary_tensor(smaller, 17).shape == (1, 1, 17 * 3)


def test_torchtitan_does_not_support_a_u_net() -> None:
    design = parse_design(u_net_document())

    with pytest.raises(InputError, match="skip connections"):
        export_files(design, lower(design), [4, 3])
