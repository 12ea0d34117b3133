"""The command line: the output and the exit status of each command, and messages about invalid input."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from meshwave.engine.cli import main as cli
from meshwave.engine.cli import output
from meshwave.engine.document import Design, parse_design
from meshwave.engine.document.cluster import Cluster
from meshwave.engine.exports import exports
from meshwave.engine.files import all_examples, examples
from meshwave.engine.program.program import parse_program
from meshwave.engine.units import quantity
from tests._strategies import document
from tests.engine.document.schema import faults

ROOT = Path(__file__).resolve().parents[3]
Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def meshwave(capfd: pytest.CaptureFixture[str]) -> Command:
    """Return a function that runs a command in this process and returns its exit status, output and errors."""

    def run(*arguments: str | Path) -> tuple[int, str, str]:
        try:
            status = cli.main([str(argument) for argument in arguments])
        except SystemExit as left:  # argparse leaves by itself
            status = int(left.code or 0)
        sys.stdout.flush()
        out, err = capfd.readouterr()
        return status, out, err

    return run


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes a document, or text, to a file."""

    def write(content: dict[str, Any] | str | bytes, name: str = "design.json") -> Path:
        path = tmp_path / name
        text = json.dumps(content) if isinstance(content, dict) else content
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


@pytest.fixture
def design(write: Callable[..., Path]) -> Path:
    return write(document({"schedule": "1f1b", "microbatches": 4}, 3))


@pytest.fixture
def wrong_file(write: Callable[..., Path]) -> Path:
    """A design with two mistakes."""
    made = document({"schedule": "1f1b", "microbatches": 0}, 3)
    made["model"] = {**made["model"], "heads": 7}
    return write(made, "wrong.json")


# ---- check ----


def test_check_reports_no_problem_of_a_valid_design(meshwave: Command, design: Path) -> None:
    assert meshwave("check", design) == (0, "no problems\n", "")


def test_check_lists_problems_with_their_fixes(meshwave: Command, wrong_file: Path) -> None:
    status, out, err = meshwave("check", wrong_file)

    assert (status, err) == (2, "")
    assert out.splitlines() == [
        "model.heads: 7 heads do not divide a hidden width of 64; use 4 or 8 heads, or a width of 63",
        "  fix: set heads to 4",
        "  fix: set heads to 8",
        "  fix: set hidden to 63",
        "pipeline.microbatches: 0 should be at least 1",
        "  fix: set microbatches to 1",
    ]


def test_check_as_json(meshwave: Command, wrong_file: Path) -> None:
    status, out, _ = meshwave("check", wrong_file, "--json")

    problems = json.loads(out)["problems"]
    assert status == 2
    assert [problem["where"] for problem in problems] == ["model.heads", "pipeline.microbatches"]
    assert all(problem.keys() == {"where", "code", "params", "message", "severity", "fixes"} for problem in problems)


def test_check_as_json_of_a_missing_file(meshwave: Command, tmp_path: Path) -> None:
    status, out, err = meshwave("check", tmp_path / "none.json", "--json")

    (problem,) = json.loads(out)["problems"]
    assert (status, err) == (2, "")
    assert (problem["where"], problem["code"]) == ("", "file")
    assert problem["message"].startswith("cannot read ")


def test_check_accepts_several_designs(meshwave: Command, write: Callable[..., Path], wrong_file: Path) -> None:
    status, out, err = meshwave("check", "01-first-wave", wrong_file, "02-two-wave")

    lines = out.splitlines()
    assert (status, err) == (2, "")
    assert lines[0] == "01-first-wave: no problems"
    assert lines[1].startswith(f"{wrong_file}: model.heads: 7 heads do not divide")
    assert lines[-1].startswith("02-two-wave: cannot read 02-two-wave: no file and no example has this name.")
    assert lines[-1].endswith("Did you mean 02-two-waves?")

    problems = json.loads(meshwave("check", "01-first-wave", wrong_file, "--json")[1])["problems"]
    assert {problem["design"] for problem in problems} == {str(wrong_file)}


def test_check_of_an_invalid_design_shows_warnings_and_problems_of_its_order(
    meshwave: Command, write: Callable[..., Path]
) -> None:
    made = document({"schedule": "custom", "microbatches": 1, "actions": [["0F0"]]}, 1)
    made["cluster"]["nodes"] = 2
    made["name"] = ""
    made["cost"] = {"kind": "unit"}
    made["model"] = {**made["model"], "moe": {"experts": 4}}
    made["experts"] = {"ep": 3}

    status, out, _ = meshwave("check", write(made))

    places = [line.removeprefix("warning: ").partition(": ")[0] for line in out.splitlines()]
    assert status == 2
    assert {"name", "experts.ep", "pipeline.actions[0]"} <= set(places)


def test_a_mesh_of_scattered_devices_is_reported(meshwave: Command, write: Callable[..., Path]) -> None:
    made = document({"schedule": "gpipe", "microbatches": 1}, 1, dp=2)
    made["cluster"].update(nodes=2, devices_per_node=2)
    made["meshes"][0]["devices"] = [0, 3]

    status, out, _ = meshwave("check", write(made))

    assert status == 0
    assert "not a rectangle of nodes x devices" in out


def test_a_warning_does_not_change_the_exit_status(meshwave: Command, write: Callable[..., Path]) -> None:
    made = document({"schedule": "gpipe", "microbatches": 1}, 2)
    made["cluster"]["nodes"] = 3

    status, out, _ = meshwave("check", write(made))

    assert (status, out) == (0, "warning: meshes: 1 of 3 devices belong to no mesh and stay idle\n")


def test_check_finds_a_deadlock_of_a_custom_order(meshwave: Command, write: Callable[..., Path]) -> None:
    made = document({"schedule": "custom", "microbatches": 1, "actions": [["0B0", "0F0"]]}, 1)

    status, out, _ = meshwave("check", write(made))

    assert status == 2
    assert out.startswith("pipeline.actions[0][0]: deadlock: mesh m0 waits at 0B0, which needs 0F0")


# ---- program ----


def test_program_as_text(meshwave: Command, write: Callable[..., Path]) -> None:
    path = write(document({"schedule": "gpipe", "microbatches": 1}, 2))

    assert meshwave("program", path) == (
        0,
        "rank 0: 0RECV_B0 0F0 0SEND_F0 0B0 STEP\nrank 1: 1RECV_F0 1F0 1B0 1SEND_B0 STEP\n",
        "",
    )
    assert meshwave("program", path, "--rank", "1") == (0, "1RECV_F0 1F0 1B0 1SEND_B0 STEP\n", "")


def test_program_as_json_has_the_order_of_each_mesh_with_and_without_messages(meshwave: Command, design: Path) -> None:
    status, out, err = meshwave("program", design, "--format", "json")

    program = json.loads(out)
    assert (status, err) == (0, "")
    assert program["compute"][0] == "0F0 0F1 0F2 0B0 0F3 0B1 0B2 0B3".split()
    assert parse_program(program["actions"]).digest == program["digest"]
    one = json.loads(meshwave("program", design, "--format", "json", "--rank", "2")[1])
    assert one["compute"] == [program["compute"][2]]
    assert one["actions"] == [program["actions"][2]]


def test_program_as_a_schedule_of_torch(meshwave: Command, design: Path) -> None:
    out = meshwave("program", design, "--format", "torch-csv")[1]

    assert list(csv.reader(out.splitlines()))[2] == "2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3".split()
    assert meshwave("program", design, "--format", "torch-csv", "--rank", "2")[1] == out.splitlines()[2] + "\n"


def test_program_as_a_schedule_of_torch_with_its_messages(meshwave: Command, design: Path) -> None:
    out = meshwave("program", design, "--format", "torch-csv-comms")[1]

    assert len(out.splitlines()) == 3
    assert meshwave("export", design, "--to", "torch-csv-comms")[1] == out
    assert meshwave("program", design, "--format", "torch-csv-comms", "--rank", "2")[1] == out.splitlines()[2] + "\n"


@pytest.mark.parametrize("rank", ["3", "-1"])
def test_program_of_a_missing_rank_is_refused(meshwave: Command, design: Path, rank: str) -> None:
    assert meshwave("program", design, "--rank", rank) == (
        2, "", f"--rank: rank {rank} does not exist; the design has ranks 0 to 2\n"
    )  # fmt: skip


# ---- simulate, compare ----


def test_simulate_prints_the_metrics(meshwave: Command) -> None:
    status, out, err = meshwave("simulate", "02-two-waves")

    assert (status, err) == (0, "")
    assert out.splitlines()[:2] == [
        "iteration      60 units",
        "bubble         20.0%   (within the span of each mesh: 13.5%)",
    ]
    assert [line.split()[:3] for line in out.splitlines()[-9:-5]] == [[mesh, "48", "12"] for mesh in "ABCD"]


def test_simulate_in_seconds_prints_throughput_and_mfu(meshwave: Command) -> None:
    out = meshwave("simulate", "10-bert-on-tacc")[1]

    heads = ["iteration", "bubble", "throughput", "MFU", "limit", "exposed", "peak", "mesh"]
    assert [line.split()[0] for line in out.splitlines()[:8]] == heads
    assert "GB of 40 GB per device: fits" in out
    assert "inside" not in out, "no block waits for messages of its own"


def test_simulate_prints_the_waits_for_messages_inside_blocks(meshwave: Command) -> None:
    numbers = json.loads(meshwave("simulate", "20-unequal-meshes", "--json")[1])

    alone, cut = numbers["inside_communication_s"]
    assert alone == 0 < cut < numbers["busy_s"][1]
    assert numbers["mean_inside_communication_s"] == cut / 2
    assert numbers["mean_exposed_communication_s"] == pytest.approx(sum(numbers["exposed_communication_s"]) / 2)
    out = meshwave("simulate", "20-unequal-meshes")[1]
    waits = [quantity(numbers[f"mean_{which}_communication_s"], "s") for which in ("exposed", "inside")]
    assert "\nexposed        {} of communication, mean over the meshes; + {} inside blocks\n".format(*waits) in out
    assert re.search(r"^mesh +busy +idle +exposed +inside ", out, re.MULTILINE)


def test_simulate_prints_the_dropped_tokens_of_experts(meshwave: Command) -> None:
    (part,) = json.loads(meshwave("simulate", "17-experts-on-two-cores", "--json")[1])["dropped"]

    assert 0.0005 < part < 0.05
    line = f"\ndropped        {part:.1%} of token assignments at this load\n"
    assert line in meshwave("simulate", "17-experts-on-two-cores")[1]
    assert json.loads(meshwave("simulate", "02-two-waves", "--json")[1])["dropped"] is None


def test_simulate_as_json_prints_one_object_and_nothing_else(meshwave: Command) -> None:
    status, out, err = meshwave("simulate", "02-two-waves", "--json")

    numbers = json.loads(out)
    assert (status, err) == (0, "")
    assert numbers.keys() >= {
        *("makespan_s", "bubble_ratio", "span_bubble_ratio", "samples_per_s", "tokens_per_s", "mfu", "busy_s"),
        *("peak_inflight", "peak_memory_bytes", "weight_copies", "fits", "warnings"),
    }
    assert (numbers["makespan_s"], numbers["peak_inflight"]) == (60, [3.25, 3.5, 3.75, 4.0])


def test_simulate_prints_the_memory_of_every_device_by_category(meshwave: Command) -> None:
    _, out, _ = meshwave("simulate", "08-gpipe-against-1f1b", "--json")
    groups = json.loads(out)["device_memory"]

    assert [(group["meshes"], group["devices"]) for group in groups] == [
        (["A"], [0]),
        (["B", "C"], [1, 2]),
        (["D"], [3]),
    ]
    assert [group["peak_memory_bytes"] for group in groups] == [sum(group["memory_bytes"].values()) for group in groups]
    lines = meshwave("simulate", "08-gpipe-against-1f1b")[1].splitlines()
    assert "devices        weights      gradients    optimizer    activations  workspace    meshes" in lines
    assert "1-2            400 kB       0 B          800 kB       8.72 MB      623 kB       B and C" in lines


def test_simulate_writes_a_trace_beside_its_numbers(meshwave: Command, tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"

    status, out, err = meshwave("simulate", "02-two-waves", "--json", "--trace", trace)

    assert status == 0
    assert json.loads(out)["makespan_s"] == 60
    assert err == f"wrote {trace}; open it at ui.perfetto.dev\n"
    assert json.loads(trace.read_text())["traceEvents"]


def test_compare_prints_designs_side_by_side(meshwave: Command) -> None:
    status, out, _ = meshwave("compare", "01-first-wave", "02-two-waves", "03-gpt-on-two-cores")

    lines = out.splitlines()
    assert status == 0
    assert lines[0].split() == ["design", "iteration", "bubble", "seq/s", "memory"]
    assert lines[1].startswith("One wave on four meshes  ")
    assert "36 units     0.0%    33.3%" in lines[1]
    assert "60 units   +66.7%    20.0%" in lines[2]
    assert "%" in lines[3]
    assert "+" not in lines[3].split("cores")[1], "seconds and units are not compared"
    assert lines[5:9] == [
        "Two waves on four meshes, compared with the first",
        "  waves: 1 -> 2",
        "  cost.forward: 2 -> 4",
        "  cost.backward: 4 -> 8",
    ]


def test_compare_as_json_has_the_metrics_of_each_design(meshwave: Command) -> None:
    out = meshwave("compare", "01-first-wave", "02-two-waves", "--json")[1]

    designs = json.loads(out)["designs"]
    assert [numbers["makespan_s"] for numbers in designs] == [36, 60]
    assert [numbers["differences"] for numbers in designs] == [
        [],
        ["waves: 1 -> 2", "cost.forward: 2 -> 4", "cost.backward: 4 -> 8"],
    ]


def test_compare_names_the_invalid_design(meshwave: Command, wrong_file: Path) -> None:
    status, out, err = meshwave("compare", "01-first-wave", str(wrong_file))

    assert (status, out) == (2, "")
    assert all(line.startswith(f"{wrong_file}: ") for line in err.splitlines())


# ---- export ----


@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "start"),
    [
        ("perfetto", b"{"),
        ("torch-csv", b"0F0,"),
        ("torch-csv-comms", b"0UNSHARD,"),
        ("svg", b"<svg"),
        ("png", b"\x89PNG\r\n"),
    ],
)
def test_export_writes_each_format_to_a_file_or_to_standard_output(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], form: str, start: bytes
) -> None:
    target = tmp_path / "exported"

    assert cli.main(["export", "02-two-waves", "--to", form, "-o", str(target)]) == 0
    assert capfdbinary.readouterr() == (b"", b"")
    assert cli.main(["export", "02-two-waves", "--to", form]) == 0
    printed = capfdbinary.readouterr().out

    assert target.read_bytes().startswith(start)
    assert printed == target.read_bytes()
    assert [file.name for file in tmp_path.iterdir()] == ["exported"]


def test_the_help_of_export_names_every_format(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["export", "--help"])

    assert f"--to FORMAT {', '.join(exports)} " in " ".join(capsys.readouterr().out.split())


def test_export_formats_are_imported_only_for_help(meshwave: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "meshwave.engine.exports")

    assert cli.parser().parse_args(["doctor"]).json is False
    assert "meshwave.engine.exports" not in sys.modules


def test_export_of_replicas_to_torch_is_refused_before_a_file_is_written(meshwave: Command, tmp_path: Path) -> None:
    status, out, err = meshwave("export", "04-chimera", "--to", "torch-csv", "-o", tmp_path / "x.csv")

    assert (status, out) == (2, "")
    assert "has 2 replicas of every stage; choose a schedule without replicas" in err
    assert list(tmp_path.iterdir()) == []


def test_export_for_torchtitan_is_a_zip_of_schedule_and_settings(meshwave: Command, tmp_path: Path) -> None:
    assert meshwave("export", "01-first-wave", "--to", "torchtitan", "-o", tmp_path / "x.zip") == (0, "", "")

    assert "meshwave/schedule.csv" in zipfile.ZipFile(tmp_path / "x.zip").namelist()


def test_binary_output_is_not_written_to_a_terminal(meshwave: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)

    told = "--out: torchtitan is binary; name a file with --out\n"
    assert meshwave("export", "01-first-wave", "--to", "torchtitan") == (2, "", told)


def test_export_for_torchtitan_of_two_waves_is_refused(meshwave: Command, tmp_path: Path) -> None:
    status, out, err = meshwave("export", "02-two-waves", "--to", "torchtitan", "-o", tmp_path / "x.zip")

    assert (status, out) == (2, "")
    assert "no schedule has this placement" in err
    assert list(tmp_path.iterdir()) == []


# ---- import ----


def test_import_makes_a_design_with_the_schedule(meshwave: Command, write: Callable[..., Path]) -> None:
    path = write("0F0, 0F1,,0B0,0B1\n1F0,1B0,1F1,1B1\n", "by hand.csv")

    status, out, err = meshwave("import", path)

    made = parse_design(out)
    assert (status, err) == (0, "")
    assert (made.name, made.pipeline.schedule, made.ranks) == ("by hand", "custom", 2)
    assert made.pipeline.actions[0] == ("0F0", "0F1", "0B0", "0B1")


def test_an_export_is_imported_back_into_its_design(meshwave: Command, tmp_path: Path) -> None:
    schedule, back = tmp_path / "x.csv", tmp_path / "back.json"
    meshwave("export", "02-two-waves", "--to", "torch-csv-comms", "-o", schedule)

    status, out, err = meshwave("import", schedule, "--into", "02-two-waves", "-o", back)

    # torch writes gathers of weights for every model; this one is not sharded.
    assert (status, out, err.count("\n")) == (0, "", 1) and err.startswith("UNSHARD and RESHARD")
    assert json.loads(meshwave("simulate", back, "--json")[1])["makespan_s"] == 60
    assert meshwave("program", back, "--format", "torch-csv") == meshwave(
        "program", "02-two-waves", "--format", "torch-csv"
    )


def test_import_reports_its_changes(meshwave: Command, write: Callable[..., Path], tmp_path: Path) -> None:
    path = write("0F0,0B0\n1F0,1B0", "x.csv")

    status, out, err = meshwave("import", path, "--into", "02-two-waves", "--out", tmp_path / "y.json")

    assert (status, out, err) == (0, "", "2 meshes of one device each replaced the 4 of the design\n")


def test_import_names_the_design_that_cannot_be_read(meshwave: Command, write: Callable[..., Path]) -> None:
    broken = write("x", "broken.json")

    status, _, err = meshwave("import", write("0F0,0B0\n1F0,1B0", "x.csv"), "--into", broken)

    assert (status, err) == (2, f"{broken}: line 1, column 1 is not JSON: Expecting value\n")


def test_import_shows_the_problems_of_the_file(meshwave: Command, write: Callable[..., Path], tmp_path: Path) -> None:
    path = write("0F0,0B0\n1F0,1X0", "x.csv")

    status, out, err = meshwave("import", path, "-o", tmp_path / "y.json")

    assert (status, out) == (2, "")
    assert err.splitlines() == [
        "row 2, column 2 (B2): '1X0' is not an action; did you mean 1B0?",
        "    1F0,1X0",
        "        ^^^",
    ]
    assert not (tmp_path / "y.json").exists()


@pytest.mark.parametrize("option", [("export", "--to", "svg", "-o"), ("simulate", "--trace")])
def test_an_unwritable_file_is_reported(meshwave: Command, tmp_path: Path, option: tuple[str, ...]) -> None:
    command, *rest = option

    status, out, err = meshwave(command, "02-two-waves", *rest, tmp_path / "no" / "x")

    assert (status, out) == (2, "")
    assert err == f"cannot write {tmp_path}/no/x: No such file or directory\n"


# ---- schema, examples ----


def test_examples_are_valid_against_the_schema(meshwave: Command) -> None:
    status, out, err = meshwave("schema")

    schema = json.loads(out)
    assert (status, err) == (0, "")
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema == {"$schema": schema["$schema"], **Design.model_json_schema()}
    for path in examples().values():
        assert list(faults(json.loads(path.read_text()), schema, schema)) == []


def test_examples_are_listed_printed_and_copied(meshwave: Command, tmp_path: Path) -> None:
    listed = meshwave("examples")[1].splitlines()
    titles = json.loads(meshwave("examples", "--json")[1])
    printed = meshwave("examples", "02-two-waves")[1]
    copied = meshwave("examples", "--to", tmp_path / "new" / "folder")

    assert [line.split()[0] for line in listed] == list(all_examples()) == list(titles)
    assert parse_design(printed).name == titles["02-two-waves"] == "Two waves on four meshes"
    assert copied == (0, "", f"copied {len(titles)} examples to {tmp_path}/new/folder\n")
    assert sorted(path.stem for path in (tmp_path / "new" / "folder").iterdir()) == list(titles)


def test_examples_that_were_edited_are_kept(meshwave: Command, tmp_path: Path) -> None:
    mine, count = tmp_path / "02-two-waves.json", len(all_examples())
    mine.write_text("my own")
    (tmp_path / "01-first-wave.json").write_bytes(all_examples()["01-first-wave"].read_bytes())

    status, out, err = meshwave("examples", "--to", tmp_path)

    assert (status, out, mine.read_text()) == (0, "", "my own")
    assert err.splitlines() == [
        f"copied {count - 1} examples to {tmp_path}",
        f"kept {mine}, which differs from the example; to copy the example, move the file elsewhere",
    ]
    assert len([*tmp_path.iterdir()]) == count


def test_the_summary_states_price_and_energy_at_the_rates_of_the_cluster(meshwave: Command, tmp_path: Path) -> None:
    document = json.loads(examples()["11-eight-by-32"].read_text())
    document["cluster"] |= {"price_per_device_hour": 2.5, "watts_per_device": 700}
    (tmp_path / "priced.json").write_text(json.dumps(document))

    summary = meshwave("simulate", tmp_path / "priced.json")[1]

    assert "price          0.00415 a step, 0.127 a million tokens, " in summary
    assert "energy         4.19 kJ a step, 128 kJ a million tokens, " in summary


@pytest.mark.slow
def test_devices_and_clusters_are_listed_and_a_cluster_is_a_section_of_a_document(meshwave: Command) -> None:
    table = json.loads(meshwave("hardware", "--json")[1])
    _, printed, source = meshwave("hardware", "gb200-nvl72")

    names = [each["name"] for each in (*table["devices"], *table["clusters"])]
    assert all(name in meshwave("hardware")[1] for name in names)
    assert all(each["source"] for each in (*table["devices"], *table["clusters"]))
    assert Cluster.model_validate_json(printed).devices_per_node == 72
    assert source


@pytest.mark.slow
def test_published_models_are_listed_and_a_model_is_a_section_of_a_document(meshwave: Command) -> None:
    table = json.loads(meshwave("models", "--json")[1])["models"]
    _, printed, source = meshwave("models", "Llama-3-8B")

    assert all(each["source"] and each["name"] in meshwave("models")[1] for each in table)
    assert json.loads(printed)["attention"]["kv_heads"] == 8
    assert "Meta-Llama-3-8B" in source


def test_a_file_takes_precedence_over_an_example_of_its_name(
    meshwave: Command, write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(document({"schedule": "gpipe", "microbatches": 1}, 1), "02-two-waves")
    monkeypatch.chdir(path.parent)

    assert json.loads(meshwave("simulate", "02-two-waves", "--json")[1])["makespan_s"] == 3


# ---- wrong input ----

COMMANDS = [
    ("check",),
    ("program",),
    ("simulate",),
    ("simulate", "--json"),
    ("compare",),
    ("export", "--to", "perfetto"),
    ("run",),
]


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "line 1, column 1 is not JSON"),
        (b"\x89PNG\r\n\x1a\n\x00", "the file is not JSON text"),
        (b"[" * 100_000, "is nested too deeply"),
        (b'{"format": "meshwave/2"}', "this design has format version 2, and this Meshwave reads versions up to 1"),
        (b'{"format": "meshwave/1", "name": NaN}', "'cluster' is missing; add it"),
        (b"null", "a design is a JSON object"),
    ],
    ids=["empty", "binary", "deep", "newer", "NaN", "null"],
)
def test_a_file_that_is_not_a_design_is_reported_with_status_2(
    meshwave: Command, write: Callable[..., Path], command: tuple[str, ...], content: bytes, told: str
) -> None:
    name, *options = command

    status, out, err = meshwave(name, write(content), *options)

    assert status == 2
    assert told in (out if name == "check" else err)
    assert "Traceback" not in err
    if "--json" in options:
        problems = json.loads(out)["problems"]
        assert any(told in problem["message"] for problem in problems)
    else:
        assert not out or name == "check"


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize(
    ("name", "code", "told"),
    [
        (
            "nothing.json",
            "unknown_design",
            "cannot read {}: no file and no example has this name. The examples are listed by: meshwave examples",
        ),
        ("", "unreadable_file", "cannot read {}: Is a directory"),
    ],
)
def test_an_unreadable_file_is_reported_with_status_2(
    meshwave: Command, tmp_path: Path, command: tuple[str, ...], name: str, code: str, told: str
) -> None:
    path = tmp_path / name

    status, out, err = meshwave(command[0], path, *command[1:])

    assert (status, err) == (2, told.format(path) + "\n")
    if "--json" in command:
        (problem,) = json.loads(out)["problems"]
        assert (problem["code"], problem["message"]) == (code, told.format(path))
    else:
        assert out == ""


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "the following arguments are required: COMMAND"),
        (("simulat", "x"), "invalid choice: 'simulat'"),
        (("simulate",), "the following arguments are required: DESIGN"),
        (("export", "x", "--to", "xls"), "there is no export called 'xls'. Known: html, kubernetes, megatron,"),
        (("program", "x", "--rank", "one"), "invalid int value: 'one'"),
        (("examples", "02-two-wave"), "there is no example called '02-two-wave'. Did you mean '02-two-waves'?"),
        (("examples", "--to", "/dev/null/x"), "the folder /dev/null/x cannot be created: Not a directory"),
        (("serve",), "start the designer with: meshwave serve"),
    ],
)
def test_an_invalid_command_is_reported_on_standard_error_with_status_2(
    meshwave: Command, arguments: tuple[str, ...], told: str
) -> None:
    status, out, err = meshwave(*arguments)

    assert (status, out) == (2, "")
    assert told in err


def test_a_failed_run_ends_with_status_1(meshwave: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    from meshwave.engine.errors import RunError

    def fail(_: Any) -> int:
        raise RunError("rank 3, action 17 of 64, 3F2: out of memory")

    monkeypatch.setattr("meshwave.engine.cli.doctor.doctor", fail)

    assert meshwave("doctor") == (1, "", "rank 3, action 17 of 64, 3F2: out of memory\n")


def test_ctrl_c_ends_with_the_status_of_a_signal(meshwave: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(_: Any) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("meshwave.engine.cli.doctor.doctor", stopped)

    assert meshwave("doctor") == (130, "", "stopped\n")


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_other_signals_end_every_command_as_ctrl_c_does_unless_they_are_ignored(
    meshwave: Command, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    number = getattr(signal, name)

    def receive(_: Any) -> int:
        signal.raise_signal(number)
        return 0

    monkeypatch.setattr("meshwave.engine.cli.doctor.doctor", receive)
    before = signal.signal(number, signal.SIG_DFL)
    try:
        assert meshwave("doctor") == (128 + number, "", "stopped\n")
        assert signal.signal(number, signal.SIG_IGN) is signal.SIG_DFL
        assert meshwave("doctor") == (0, "", ""), "nohup lets a command ignore SIGHUP"
    finally:
        signal.signal(number, before)


# ---- as a process ----

INTERRUPTED = """
import runpy, sys

class Interrupt:
    def find_spec(self, name, path, target=None):
        if name == "meshwave.designer":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupt())
runpy.run_module("meshwave", run_name="__main__", alter_sys=True)
"""


def test_ctrl_c_during_the_imports_causes_no_traceback() -> None:
    command = [sys.executable, "-c", INTERRUPTED, "examples"]

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (130, "", "stopped\n")


def process(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "meshwave.engine.cli.main", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, **options)


def without_progress(text: str) -> str:
    """Return a text without lines of progress, which a slow machine prints."""
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith("computing: "))


@pytest.mark.slow
def test_simulate_imports_neither_torch_nor_panel() -> None:
    """The command must end within a second."""
    lines = (
        "import sys; from meshwave.engine.cli.main import main; status = main(['simulate', '11-eight-by-32', '--json'])",
        "heavy = {'torch', 'panel', 'bokeh', 'meshwave.engine.runtime', 'meshwave.engine.runs', 'designer'} & set(sys.modules)",
        "sys.exit(status or ' '.join(sorted(heavy)) or 0)",
    )

    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr  # where a machine is busy, standard error also shows the progress
    assert json.loads(done.stdout)["makespan_s"] > 0


@pytest.mark.slow
def test_a_reader_that_ends_early_causes_no_error() -> None:
    """An example is ``meshwave export ... | head``."""
    command = f"{sys.executable} -m meshwave.engine.cli.main export 11-eight-by-32 --to perfetto | head -c 16; echo ${{PIPESTATUS[0]}}"

    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.stdout.endswith("0\n")
    assert without_progress(done.stderr) == ""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux has /dev/full")
@pytest.mark.parametrize(
    ("command", "status", "told"),
    [
        ("check 02-two-waves >&-", 0, ""),
        ("check nosuch 2>&-", 2, ""),
        ("check 02-two-waves >/dev/full", 1, "the output cannot be written: No space left on device\n"),
        ("export 02-two-waves --to svg >/dev/full", 1, "the output cannot be written: No space left on device\n"),
        ("check nosuch 2>/dev/full", 2, ""),
        ("simulate 02-two-waves | true", 0, ""),
        ("--help | true", 0, ""),
        ("runs --help >/dev/full", 1, "the output cannot be written: No space left on device\n"),
    ],
)
def test_output_that_cannot_be_written_causes_no_traceback(command: str, status: int, told: str) -> None:
    line = f"{sys.executable} -m meshwave.engine.cli.main {command}; exit ${{PIPESTATUS[0]}}"

    buffered = {**os.environ, "PYTHONUNBUFFERED": ""}
    done = subprocess.run(["bash", "-c", line], cwd=ROOT, env=buffered, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout, without_progress(done.stderr)) == (status, "", told)


@pytest.mark.parametrize("command", [["import"], ["people", "add", "ada", "--role", "viewer", "--file"]])
def test_a_name_that_is_too_long_is_reported(meshwave: Command, command: list[str]) -> None:
    status, out, err = meshwave(*command, "a" * 5000)

    assert (status, out) == (2, "")
    assert re.fullmatch(r"cannot (read|write) a+\.\.\.: File name too long\n", err)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("simulate", "11-eight-by-32"), "computing: 40%, pricing actions"),
        (("reshard", "14-tensor-parallel", "--boundary", "A:B"), "computing: 3%, planning broadcast, ensemble"),
    ],
)
def test_long_work_prints_progress_on_standard_error(
    command: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "PROGRESS_INTERVAL_S", 0.0)

    assert cli.main(command) == 0

    assert words in capsys.readouterr().err


def test_the_version_is_printed() -> None:
    from meshwave import __version__

    assert process("--version").stdout == f"meshwave {__version__}\n"


def test_control_characters_of_names_never_reach_the_terminal(meshwave: Command, write: Callable[..., Path]) -> None:
    evil = "\x1b]0;owned\x07\x9b31m\rred\u202e"
    made = document({"schedule": "1f1b", "microbatches": 4}, 3, name=f"design {evil}")
    made["meshes"][0]["name"] = f"mesh {evil}"
    hostile, plain = write(made), write(document({"schedule": "gpipe", "microbatches": 4}, 3), "plain.json")
    unknown = write({**made, f"key {evil}": 1}, "unknown.json")

    commands = (
        ["simulate", hostile], ["compare", hostile, plain], ["compare", plain, hostile], ["check", unknown],
        ["check", f"no {evil} file"], ["program", hostile], ["export", hostile, "--to", "png", "--out", "/no/" + evil],
        ["nothing", evil],
    )  # fmt: skip
    printed = ["".join(map(str, meshwave(*arguments))) for arguments in commands]

    assert not [text for text in printed if re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", text)]
    assert all("\\u001b" in printed[number] for number in (1, 2)), printed[1:3]
