"""Import of schedules from CSV files: torch's files are read, and problems are reported at their cells."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from meshwave.engine.document import Design, parse_design
from meshwave.engine.errors import InputError
from meshwave.engine.exports import exports, torch_csv, torch_csv_comms
from meshwave.engine.findings import DesignError
from meshwave.engine.imports import load_import
from meshwave.engine.imports.csv_sheet import MOST_LISTED
from meshwave.engine.imports.torch_csv import import_schedule, read_schedule
from meshwave.engine.lowering.lower import lower
from meshwave.engine.predict.prediction import predict
from meshwave.engine.program.action import Action, Op
from meshwave.engine.program.program import format_program, parse_program
from meshwave.engine.program.simulation import simulate
from meshwave.engine.schedules import schedules
from tests._strategies import Drawn, document, pipelines, seconds, seeds

TWO_RANKS = "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"


@pytest.fixture
def three_rank_design() -> Design:
    """Return a design of three meshes, one on each device."""
    return parse_design(document({"schedule": "1f1b", "microbatches": 8}, 3, name="three"))


def orders(design: Design) -> list[list[str]]:
    return format_program(lower(design), compute_only=True)


def faults(text: str, into: Design | None = None) -> list[str]:
    with pytest.raises(DesignError) as refused:
        import_schedule(text, "a schedule", into)
    return [str(problem) for problem in refused.value.problems]


# ---- what comes in ----


@pytest.mark.slow
@given(drawn=st.sampled_from(list(schedules)).flatmap(lambda name: pipelines(name, 4, 6)), seed=seeds)
def test_exported_schedules_are_imported_in_both_forms(drawn: Drawn, seed: int) -> None:
    design = drawn.design()
    program = lower(design)
    try:
        lines = torch_csv.schedule_rows(program)
    except InputError:
        assume(False)
    with_messages = torch_csv_comms.message_schedule_rows(program, simulate(program, seconds(program, seed)))

    for text in ("\n".join(lines), "\n".join(with_messages)):
        for into in (design, None):
            found, notes = import_schedule(text, "a schedule", into)
            assert orders(found) == orders(design)
            assert found.ranks == design.ranks
            assert {note.code for note in notes} == ({"csv_unused_gathers"} if "UNSHARD" in text else set())


def test_schedules_that_torch_lowers_and_writes_are_imported(tmp_path: Path) -> None:
    """``_dump_csv`` of a schedule with its messages, in torch 2.13."""
    written = (
        "0UNSHARD,0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1,0REDUCE_GRAD,0RESHARD\r\n"
        "1UNSHARD,1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1,1REDUCE_GRAD,1RESHARD\r\n"
    )
    path = tmp_path / "theirs.csv"
    path.write_text(written)

    design, notes = load_import(path)

    assert design.name == "theirs"
    assert ",".join(orders(design)[1]) == "1F0,1B0,1F1,1B1"
    assert [note.code for note in notes] == ["csv_unused_gathers"]


def sharded_design(schedule: str, unsharded_stages: int | None = None) -> Design:
    """Return a design whose two meshes shard the parameters of their stages."""
    training = {"sharding": "parameters", "unsharded_stages": unsharded_stages}
    return parse_design(document({"schedule": schedule, "microbatches": 4}, 2, dp=2, training=training))


@pytest.mark.parametrize(("exported", "into", "expected"), [(None, None, None), (1, None, 1), (2, 0, 2)])
def test_the_gathers_of_an_exported_schedule_are_read_back(
    exported: int | None, into: int | None, expected: int | None
) -> None:
    design = sharded_design("interleaved-1f1b", exported)
    text = exports["torch-csv-comms"].to_bytes(predict(design)).decode()

    found, notes = import_schedule(text, "x", sharded_design("gpipe", into))

    assert found.training.unsharded_stages == expected
    assert notes == ()
    assert format_program(lower(found)) == format_program(lower(design))


def test_other_places_of_gathers_and_reductions_are_reported() -> None:
    text = (
        "0UNSHARD,0F0,0F1,0SEND_F0,0SEND_F1,0RECV_B0,0RECV_B1,0B0,0B1,0RESHARD,0REDUCE_GRAD\n"
        "1RECV_F0,1RECV_F1,0UNSHARD,1UNSHARD,1F0,1B0,1REDUCE_GRAD,1F1,1B1,1SEND_B0,1SEND_B1"
    )

    notes = import_schedule(text, "x", sharded_design("gpipe")).notes

    assert {note.code: dict(note.params) for note in notes} == {
        "csv_moved_reductions": {"actions": ["1REDUCE_GRAD"]},
        "csv_other_gathers": {"stages": 2},
    }


@pytest.mark.torch
@pytest.mark.parametrize("name", ["Interleaved1F1B", "ZBVZeroBubble", "DualPipeV", "InterleavedZeroBubble"])
def test_dumps_of_torchs_own_schedules_are_imported(name: str, tmp_path: Path) -> None:
    from types import SimpleNamespace

    from torch.distributed.pipelining.schedules import get_schedule_class

    stages = [SimpleNamespace(group_rank=0, group_size=2, num_stages=4, submod=None, stage_index=i) for i in (0, 3)]
    schedule = get_schedule_class(name)(stages, 8, loss_fn=lambda a, b: a)
    for form in ("compute_only", "compute_comms"):
        path = tmp_path / f"{form}.csv"
        schedule._dump_csv(str(path), form)

        found = load_import(path)

        theirs = [[str(action) for action in schedule.pipeline_order[rank] if action is not None] for rank in range(2)]
        assert orders(found.design) == theirs
        assert [note.code for note in found.notes] == (["csv_unused_gathers"] if form == "compute_comms" else [])


@pytest.mark.parametrize(
    "text",
    [
        " 0F0 , 0F1,0B0 ,,0B1\n\t1F0,1B0,,,1F1,1B1,,\n\n\n",
        "\ufeff0F0,0F1,0B0,0B1\r\n1F0,1B0,1F1,1B1\r\n",
        "0F0;0F1;0B0;0B1\n1F0;1B0;1F1;1B1",
        "0F0\t0F1\t0B0\t0B1\n1F0\t1B0\t1F1\t1B1",
        '"0F0","0F1","0B0","0B1"\n"1F0","1B0","1F1","1B1"',
    ],
    ids=["spaces", "windows", "semicolons", "tabs", "quotes"],
)
def test_files_written_by_spreadsheets_are_imported(text: str) -> None:
    assert orders(import_schedule(text, "x").design) == orders(import_schedule(TWO_RANKS, "x").design)


def test_shared_slots_are_imported() -> None:
    design = import_schedule("0F0,0F1,0B0,0B1\n1F0,( 1F1 ; 1B0 )OVERLAP_F_B,1B1", "x").design

    assert orders(design)[1] == ["1F0", "(1F1;1B0)OVERLAP_F_B", "1B1"]
    assert lower(design).fused.any()


# ---- the design around it ----


def test_a_new_design_is_valid_and_has_one_device_per_row() -> None:
    for ranks in (2, 8, 9, 20):
        text = "\n".join(f"{rank}F0,{rank}B0" for rank in range(ranks))

        design = import_schedule(text, "mine").design

        assert (design.name, design.ranks, design.pipe.microbatches) == ("mine", ranks, 1)
        assert design.model.layers % ranks == 0
        assert predict(design).timeline.makespan > 0


def test_an_open_design_keeps_all_sections_except_the_schedule(three_rank_design: Design) -> None:
    text = torch_csv.schedule_rows(lower(parse_design(document({"schedule": "gpipe", "microbatches": 2}, 3))))

    design, notes = import_schedule("\n".join(text), "unused", three_rank_design)

    assert notes == ()
    assert (design.name, design.meshes, design.model, design.cost) == (
        three_rank_design.name,
        three_rank_design.meshes,
        three_rank_design.model,
        three_rank_design.cost,
    )
    assert (design.pipeline.schedule, design.pipeline.microbatches) == ("custom", 2)


def test_explicit_layers_are_kept_if_the_number_of_stages_is_equal() -> None:
    given = {"schedule": "1f1b", "microbatches": 2, "stages": [200, 40], "recompute": [1]}
    frame = parse_design(document(given, 2))

    kept = import_schedule(TWO_RANKS, "x", frame).design.pipeline
    gone = import_schedule("0F0,2F0,2B0,0B0\n1F0,1B0", "x", frame).design.pipeline

    assert (kept.stages, kept.recompute) == ((200, 40), (1,))
    assert gone.stages is None


def test_meshes_are_adapted_with_a_remark(three_rank_design: Design) -> None:
    design, notes = import_schedule(TWO_RANKS, "x", three_rank_design)

    assert [mesh.devices for mesh in design.meshes] == [(0,), (1,)]
    assert [note.message for note in notes] == ["2 meshes of one device each replaced the 3 of the design"]


def test_layers_are_added_for_every_stage_with_a_remark(three_rank_design: Design) -> None:
    small = three_rank_design.model_copy(update={"model": three_rank_design.model.model_copy(update={"layers": 3})})
    text = "\n".join(
        torch_csv.schedule_rows(lower(parse_design(document({"schedule": "hanayo", "microbatches": 2}, 3))))
    )

    design, notes = import_schedule(text, "x", small)

    assert design.model.layers == 6
    assert [note.message for note in notes] == ["the model now has 6 layers instead of 3, one per stage"]


def test_too_few_devices_are_reported(three_rank_design: Design) -> None:
    text = "\n".join(f"{rank}F0,{rank}B0" for rank in range(4))

    assert faults(text, three_rank_design) == [
        "the file needs 4 devices, and the cluster of 'three' has 3; add nodes to it, or import the file into a new design"
    ]


# ---- what is wrong with it ----


def test_every_unreadable_cell_is_reported_with_an_arrow_and_a_suggestion() -> None:
    assert faults("0F0,0F1,0f2,0B0,0B1,0B2\n1F0,1B0,1F1,1B1,1G2, hello ") == [
        "row 1, column 3 (C1): '0f2' is not an action; did you mean 0F2?\n"
        "    0F0,0F1,0f2,0B0,0B1,0B2\n"
        "            ^^^",
        "row 2, column 5 (E2): '1G2' is not an action; did you mean 1F2?\n"
        "    1F0,1B0,1F1,1B1,1G2,hello\n"
        "                    ^^^",
        "row 2, column 6 (F2): 'hello' is not an action; write stage, kind and microbatch, such as 0F0 (forward), 0B0 "
        "(backward), 0I0 (input gradient) or 0W0 (weight gradient)\n"
        "    1F0,1B0,1F1,1B1,1G2,hello\n"
        "                        ^^^^^",
    ]  # fmt: skip


def test_the_first_problems_are_listed_and_the_others_counted() -> None:
    told = faults(",".join(["0X0"] * (MOST_LISTED + 3)))

    assert len(told) == MOST_LISTED + 1
    assert told[-1] == "3 more problems of this kind"


def test_repeated_and_very_long_cells_are_reported_briefly() -> None:
    assert faults(",".join(["0F0"] * 1000))[1].splitlines()[0] == (
        "row 1, column 1000 (ALL1): 0F0 (A1, B1, C1, D1, E1, F1, G1, H1, ...) occurs 1000 times; keep one"
    )
    assert all(len(told) < 400 for told in faults("0" * 100_000 + "F0"))


def test_a_long_row_is_shown_around_its_cell() -> None:
    cells = [f"0F{mb}" for mb in range(100)]
    cells[50] = "nonsense"

    shown = faults(",".join(cells))[0].splitlines()

    assert shown[0].startswith("row 1, column 51 (AY1): ")
    assert shown[1].strip()[0] == shown[1][-1] == "…"
    at = shown[2].index("^")
    assert shown[1][at : at + 8] == "nonsense"
    assert len(shown[1]) < 90


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "0F0,0F1,0I0,0W0,0I1\n1F0,1B0,1F1,1B1",
            "row 1, column 5 (E1): 0W1 is missing; 0I1 (E1) is only half of the backward",
        ),
        (
            "0F0,0F1,0B0,0B1\n1F0,1B0,1F1",
            "row 2, column 3 (C2): 1B1 is missing; every stage runs every microbatch forward and backward",
        ),
        (
            "0F0,0F1,0B0,0F1,0B1\n1F0,1B0,1F1,1B1",
            "row 1, column 4 (D1): 0F1 (B1, D1) occurs 2 times; keep one",
        ),
        (
            "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1,1F9",
            "row 2, column 5 (E2): 1F9 names microbatch 9, but no cell names microbatch 2; "
            "number every microbatch from 0 without gaps",
        ),
        (
            "1F0,1B0\n2F0,2B0",
            "row 1, column 1 (A1): 1F0 names stage 1, but no cell names stage 0; number every stage from 0 without gaps",
        ),
        (
            "0B0,0F0\n1F0,1B0",
            "row 1, column 1 (A1): deadlock: row 1 waits at 0B0 (A1), which needs 0F0 (B1); row 1 runs 0F0 (B1) only "
            "after 0B0 (A1). Move 0B0 (A1) after 0F0 (B1)",
        ),
        (
            "0F0,0F1,0B0,0B1\n1F0,1F1,1B1,1B0,2F0,2B0,2F1,2B1",
            "row 2, column 3 (C2): deadlock: row 2 waits at 1B1 (C2), which needs 2B1 (H2); row 2 runs 2B1 (H2) only "
            "after 1B1 (C2). Move 1B1 (C2) after 2B1 (H2)",
        ),
        (
            "0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0",
            "row 1, column 2 (B1): deadlock: row 1 waits at 0B0 (B1), which needs 1B0 (D2); row 2 runs 1B0 (D2) only "
            "after 1F1 (A2), which needs 0F1 (C1); row 1 runs 0F1 (C1) only after 0B0 (B1). Move 0B0 (B1) after 0F1 (C1)",
        ),
        (
            "0F0,0F1,0B0\n1F0,1B0,1F1,1B1,0B1",
            "row 2, column 5 (E2): 0B1 is in row 2, and other actions of stage 0 are in row 1; a stage runs forward "
            "and backward of a microbatch in one row",
        ),
        ("0F0,0B0\n\n1F0,1B0", "row 2 computes nothing, and every row is a rank; add actions to it or remove it"),
        ("", "the file is empty; give every rank a row such as 0F0,0B0"),
        (
            "(0B0;0F0)OVERLAP_F_B",
            "row 1, column 1 (A1): '(0B0;0F0)OVERLAP_F_B' overlaps 0B0 with 0F0; a slot holds a forward, then a backward",
        ),
        (
            "0F0,0SEND_F0,0B0\n1F0,1RECV_F0,1B0,1SEND_B0",
            "row 2, column 4 (D2): 1SEND_B0 (D2) is never received; add 0RECV_B0 on the other rank",
        ),
        (
            "0F0,0SEND_F0,0RECV_B0,0B0\n1F0,1RECV_F0,1B0,1SEND_B0",
            "row 2, column 2 (B2): row 2 runs 1F0 (A2) before 1RECV_F0 (B2), which receives its input; move the receive "
            "before it",
        ),
    ],
)  # fmt: skip
def test_problems_are_reported_at_their_cells(text: str, told: str) -> None:
    first = faults(text)[0].splitlines()

    assert first[0].startswith(told)
    if first[0].startswith("row ") and ":" in told:
        cell = text.splitlines()[int(told.split()[1].strip(",")) - 1]
        assert first[1].strip() == cell
        assert set(first[2].strip()) == {"^"}


def test_a_number_that_would_need_terabytes_is_reported_at_once() -> None:
    assert "999999F999999 names stage 999999" in faults("0F0,0B0,999999F999999")[0]


@pytest.mark.parametrize(
    ("text", "note"),
    [
        (
            "0F0,0SEND_F0,0RECV_B0,0B0,0REDUCE_GRAD\n1RECV_F0,1F0,1B0,1SEND_B0",
            "stage 1 had no REDUCE_GRAD: torch would not divide their gradients by the number of microbatches",
        ),
        (
            "0F0,0SEND_F0,0RECV_B0,0B0,0REDUCE_GRAD,\n1RECV_F0,1F0,1B0,1SEND_B0,1REDUCE_GRAD",
            "empty cells such as F1 were dropped, because torch refuses them in a file with messages",
        ),
        (
            "0F0,1F1,1B1,0B0\n1F0,0F1,1B0,0B1",
            "stage 0 is in rows 1 and 2, so it has replicas; torch itself would refuse the file",
        ),
    ],
)
def test_cells_that_only_torch_would_reject_give_a_remark(text: str, note: str) -> None:
    found = import_schedule(text, "x").notes

    assert len(found) == 1 or found[-1].code == "csv_replicas"
    assert found[0].message.startswith(note)


def test_binary_and_missing_files_are_reported(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_bytes(b"\xff\xfe0\x00F\x00")

    with pytest.raises(InputError, match="x.csv is not text; save it as text in UTF-8"):
        load_import(tmp_path / "x.csv")
    with pytest.raises(InputError, match="cannot read .*none.csv: No such file"):
        load_import(tmp_path / "none.csv")


def test_a_file_with_too_many_cells_is_refused_before_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshwave.engine.imports.csv_sheet.MOST_CELLS", 3)
    monkeypatch.setattr("meshwave.engine.imports.csv_sheet._split_cells", lambda text: pytest.fail("they were read"))

    with pytest.raises(
        DesignError, match="the file has about 5 cells, but at most 3 can be read; use fewer microbatches"
    ):
        read_schedule("0F0,0F1,0B0,0B1,\n")


@pytest.mark.slow
def test_a_large_schedule_is_imported_within_seconds() -> None:
    program = lower(parse_design(document({"schedule": "1f1b", "microbatches": 256}, 64)))

    found = import_schedule("\n".join(torch_csv.schedule_rows(program)), "large")

    assert len(orders(found.design)[63]) == 512


def test_exported_csv_files_are_offered_for_import() -> None:
    """Export formats whose files end in .csv can be imported."""
    assert [name for name, export in exports.items() if export.suffix.endswith(".csv")] == [
        "torch-csv",
        "torch-csv-comms",
    ]
    assert parse_program([["0F0"]]).row(0) == Action(Op.F, 0, 0)
