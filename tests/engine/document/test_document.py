"""Documents are read, stored and written without loss or addition, and reading never executes code."""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshwave.engine.document import Design, load_design, loading, parse_design, save_design
from meshwave.engine.document.devices import device_kinds
from meshwave.engine.errors import InputError
from meshwave.engine.files import example, examples
from meshwave.engine.findings import DesignError
from meshwave.engine.schedules import schedules
from tests._findings import refusal
from tests._strategies import document, documents
from tests.engine.document.schema import faults

some = settings(suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
SCHEMA = Design.model_json_schema()


def small_document() -> dict[str, Any]:
    return document({"schedule": "1f1b", "microbatches": 2}, 2)


# ---- round trip ----


@some
@given(written=documents())
def test_a_written_design_is_read_back_unchanged(written: dict[str, Any]) -> None:
    design = parse_design(written)
    text = design.to_json()

    assert parse_design(text) == design
    assert parse_design(text.encode()) == design
    assert parse_design(json.loads(text)) == design
    assert parse_design(text).to_json() == text


@some
@given(written=documents())
def test_every_given_key_is_kept(written: dict[str, Any]) -> None:
    dumped = parse_design(written).model_dump(mode="json")

    assert is_within(written, dumped)


def is_within(given: Any, kept: Any) -> bool:
    """Return whether ``kept`` contains everything in ``given``; it may have more keys."""
    if isinstance(given, dict):
        return all(key in kept and is_within(value, kept[key]) for key, value in given.items())
    if isinstance(given, list):
        return len(given) == len(kept) and all(map(is_within, given, kept))
    return bool(given == kept)


@some
@given(written=documents())
def test_a_written_design_is_one_that_the_schema_allows(written: dict[str, Any]) -> None:
    assert list(faults(written, SCHEMA, SCHEMA)) == []
    assert list(faults(parse_design(written).model_dump(mode="json"), SCHEMA, SCHEMA)) == []


@pytest.mark.parametrize("path", examples().values(), ids=list(examples()))
def test_the_schema_allows_the_examples(path: Path) -> None:
    assert list(faults(json.loads(path.read_text()), SCHEMA, SCHEMA)) == []


def test_the_schema_describes_every_key() -> None:
    """The descriptions are the help texts of the form."""
    for name, part in SCHEMA["$defs"].items():
        for key, described in part["properties"].items():
            about = [described, *described.get("anyOf", [])]
            assert any("description" in each or "$ref" in each for each in about), f"{name}.{key}"


def test_the_schema_knows_every_schedule_and_its_options() -> None:
    mapping = SCHEMA["properties"]["pipeline"]["discriminator"]["mapping"]

    assert set(mapping) == set(schedules)
    for name, reference in mapping.items():
        keys = SCHEMA["$defs"][reference.rsplit("/", 1)[1]]["properties"].keys()
        assert set(schedules[name].model_fields) < keys
        assert {"schedule", "microbatches", "stages", "placement", "actions"} <= keys


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"pipeline": {"schedule": "gpipe"}}, "none of the members fits"),
        ({"nmae": "x"}, "there is no key nmae"),
        ({"meshes": []}, "too few"),
    ],
)
def test_the_schema_refuses_documents_that_reading_refuses(change: dict[str, Any], told: str) -> None:
    wrong = {**small_document(), **change}

    assert any(told in fault for fault in faults(wrong, SCHEMA, SCHEMA))
    with pytest.raises(DesignError):
        parse_design(wrong)


def test_lists_of_numbers_stay_on_one_line_and_keys_in_their_order() -> None:
    """The file stays readable in diffs."""
    written = {
        **small_document(),
        "pipeline": {"schedule": "custom", "microbatches": 1, "actions": [["0F0", "0B0"], ["1F0", "1B0"]]},
    }
    text = parse_design(written).to_json()

    assert text.startswith('{\n  "format": "meshwave/1",\n  "name": "a test",\n  "cluster": {\n')
    assert '"devices": [0],\n' in text
    assert '      ["0F0", "0B0"],\n      ["1F0", "1B0"]\n' in text
    assert text.endswith("}\n")


@some
@given(name=st.text(st.characters(exclude_categories=("Cc", "Cs")), max_size=60))
def test_no_name_changes_the_layout_of_a_file(name: str) -> None:
    """Brackets and quotes in a name are not treated as lists."""
    design = parse_design({**small_document(), "name": name})

    assert json.loads(design.to_json())["name"] == name


@pytest.mark.parametrize("name", ["[1, 2]", '["a", "b"]', "\u2028", "日本", '"', "\\n["])
def test_unusual_names_are_read_back_unchanged(name: str) -> None:
    design = parse_design({**small_document(), "name": name})

    assert parse_design(design.to_json()) == design


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"name": "\x1b[31mred"}, "name"),
        ({"name": "two\nlines"}, "name"),
        ({"training": {"data": "a\x00b"}}, "training.data"),
        ({"key \x1b[2J": 1}, "key \\u001b[2J"),
    ],
)
def test_no_control_character_reaches_a_terminal_or_a_picture(change: dict[str, Any], where: str) -> None:
    with pytest.raises(DesignError) as refused:
        parse_design({**small_document(), **change})

    (problem,) = refused.value.problems
    assert problem.where == where
    assert str(problem).isprintable()


# ---- what follows from a document ----


def test_a_design_is_frozen() -> None:
    design = parse_design(small_document())

    with pytest.raises(ValueError, match="frozen"):
        design.name = "other"
    with pytest.raises(ValueError, match="frozen"):
        design.pipeline.microbatches = 3
    assert hash(design.cluster) == hash(parse_design(small_document()).cluster)


def test_omitted_keys_have_their_defaults() -> None:
    design = parse_design({**small_document(), "cost": {"kind": "unit"}, "meshes": [{"name": "A", "devices": [0]}]})

    assert (design.meshes[0].dp, design.meshes[0].tp) == (1, 1)
    assert (design.training.steps, design.training.optimizer, design.training.precision) == (20, "adamw", "fp32")
    assert (design.transfer.strategy, design.transfer.ordering) == ("broadcast", "load-balance")
    assert (design.experts.schedule, design.cluster.nics_per_node) == ("parm-auto", 1)
    assert design.model.ffn_hidden == 4 * 64


def test_counts_follow_from_the_parts() -> None:
    design = parse_design(
        document({"schedule": "hanayo", "waves": 2, "microbatches": 3}, 2, dp=2, training={"micro_batch_size": 5})
    )

    assert (design.ranks, design.stages, design.cluster.devices) == (2, 8, 4)
    assert design.sequences_per_step == 2 * 3 * 5
    assert [design.cluster.node_of(device) for device in range(4)] == [0, 0, 1, 1]


def test_an_integer_is_accepted_as_a_float_but_not_the_reverse() -> None:
    cluster = small_document()["cluster"]
    wrong = {**small_document(), "cluster": {**cluster, "nodes": 2.0}}

    assert parse_design({**small_document(), "training": {"lr": 1}}).training.lr == 1.0
    with pytest.raises(DesignError, match=r"cluster\.nodes: 2\.0 should be a whole number"):
        parse_design(wrong)


def test_each_part_of_a_draft_must_be_valid() -> None:
    wrong = {**small_document(), "meshes": [{"name": "A", "devices": [9]}]}

    assert parse_design(wrong, draft=True).meshes[0].devices == (9,)
    with pytest.raises(DesignError):
        parse_design(wrong)


# ---- files ----


def test_a_saved_design_opens(tmp_path: Path) -> None:
    design = parse_design({**small_document(), "name": "Größe 日本"})

    save_design(design, tmp_path / "a design.json")

    assert load_design(tmp_path / "a design.json") == design
    assert load_design(str(tmp_path / "a design.json")) == design
    assert [path.name for path in tmp_path.iterdir()] == ["a design.json"]


def test_saving_replaces_a_file_atomically(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    design, path = parse_design(small_document()), tmp_path / "design.json"
    path.write_text("the old one")

    def full(descriptor: int, content: bytes) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr("meshwave.engine.files.write_all", full)
        with pytest.raises(InputError, match=r"cannot write .*design\.json: No space left on device"):
            save_design(design, path)

    assert path.read_text() == "the old one"
    assert [file.name for file in tmp_path.iterdir()] == ["design.json"]


def test_a_saved_file_is_as_readable_as_any_other(tmp_path: Path) -> None:
    save_design(parse_design(small_document()), tmp_path / "design.json")
    (tmp_path / "other").touch()

    assert (tmp_path / "design.json").stat().st_mode == (tmp_path / "other").stat().st_mode


@pytest.mark.parametrize(
    ("name", "told"),
    [("missing.json", "No such file or directory"), (".", "Is a directory"), ("a\0b", "embedded null byte")],
)
def test_an_unreadable_file_is_reported_with_its_name(tmp_path: Path, name: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        load_design(tmp_path / name)


def test_an_endless_file_is_not_read_completely(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "LARGEST_FILE_BYTES", 1000)

    with pytest.raises(InputError, match="/dev/zero is too large for a design"):
        load_design("/dev/zero")


def test_too_many_meshes_are_refused_before_each_is_validated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "validation_problems", lambda *given: pytest.fail("they were looked at"))
    text = json.dumps({**document({"schedule": "1f1b", "microbatches": 4}, 4), "meshes": [{}] * 5_000})

    problem = refusal(lambda: parse_design(text, draft=True))

    assert (problem.where, problem.code) == ("meshes", "too_many_meshes")


def test_a_file_with_errors_everywhere_gives_a_short_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshwave.engine.document.validation_problems.MAX_ERRORS", 100)
    made = document({"schedule": "1f1b", "microbatches": 4}, 4)
    made["meshes"][0]["devices"] = ["x"] * 200

    problem = refusal(lambda: parse_design(made))

    assert (problem.code, problem.params) == ("too_many_errors", {"count": 201})


# ---- what strangers may hand in ----

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.slow
@given(data=st.data(), value=JSON)
def test_any_value_at_any_key_is_accepted_or_refused_with_a_message(data: st.DataObject, value: Any) -> None:
    """A mistake in a file never causes a traceback."""
    written = json.loads(parse_design({**small_document(), "experts": {"placement": [[0]], "load": [1.0]}}).to_json())
    here: Any = written
    while True:
        step = data.draw(st.sampled_from(sorted(here) if isinstance(here, dict) else range(len(here))))
        if not here[step] or not isinstance(here[step], (dict, list)) or data.draw(st.booleans()):
            break
        here = here[step]
    here[step] = value

    with suppress(DesignError):
        design = parse_design(written)
        assert parse_design(design.to_json()) == design


@given(content=st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode("utf-8", "replace")))
def test_any_bytes_are_refused_with_a_message(content: bytes) -> None:
    with pytest.raises(DesignError) as refused:
        parse_design(content)

    assert str(refused.value)


@pytest.mark.parametrize(
    ("text", "code", "params"),
    [
        ("", "invalid_json", {"line": 1, "column": 1}),
        ("{", "invalid_json", {"line": 1, "column": 2}),
        ('{"format": "meshwave/1",\n  "name" "x"}', "invalid_json", {"line": 2, "column": 10}),
        ("[]", "wrong_document", {"document": "design"}),
        ("null", "wrong_document", {"document": "design"}),
        ('"meshwave/1"', "wrong_document", {"document": "design"}),
        ("[" * 100_000, "nested_json", {}),
        ('{"a":' * 100_000, "nested_json", {}),
        ("1" * 5000, "long_number", {"digits": 4300}),
        ('{"name": "a", "name": "b"}', "repeated_key", {"key": "name"}),
        (b"\xff\xfe\x00", "wrong_encoding", {}),
        (b"\x00\x01\x02\x03", "invalid_json", {}),
        (b"%PDF-1.4", "invalid_json", {"line": 1, "column": 1}),
        ("{}", "missing_format", {"format": "meshwave/1"}),
    ],
)
def test_text_that_is_not_a_document_is_refused(text: str | bytes, code: str, params: dict[str, Any]) -> None:
    problem = refusal(lambda: parse_design(text))

    assert problem.code == code
    assert params.items() <= problem.params.items()


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "1" + "0" * 400])
def test_nan_and_infinity_are_refused_at_their_key(number: str) -> None:
    text = parse_design(small_document()).to_json().replace('"lr": 0.0003', f'"lr": {number}')

    with pytest.raises(DesignError, match=r"training\.lr: .* should be a finite number"):
        parse_design(text)


def test_a_deeply_nested_part_is_refused_with_a_message() -> None:
    deep: Any = []
    for _ in range(900):
        deep = [deep]

    with pytest.raises(DesignError):
        parse_design({**small_document(), "name": deep})


def test_a_lone_surrogate_is_refused() -> None:
    with pytest.raises(DesignError):
        parse_design(parse_design(small_document()).to_json().replace("a test", "\\ud800"))


def test_reading_executes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No name in a document is imported, opened or run, so designs of other people are safe to open."""
    watched: list[str] = []
    started = False

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if started and event.split(".")[0] in {"open", "exec", "compile", "import", "os", "subprocess", "socket"}:
            watched.append(f"{event} {arguments[:1]}")

    parse_design(small_document())
    sys.addaudithook(audit)
    written = {**small_document(), "name": "__import__('os').system('true')", "training": {"data": "$(touch x)"}}
    monkeypatch.chdir(tmp_path)
    started = True
    parse_design(written)
    started = False

    assert watched == []
    assert os.listdir(tmp_path) == []


def test_a_copy_with_other_values_computes_what_follows_from_them_again() -> None:
    drawn = load_design(example("11-eight-by-32")).cluster
    name = next(iter(device_kinds()))
    cluster = drawn.model_copy(update={"device": drawn.device.model_copy(update={"name": name})})
    link = cluster.inter_node.model_copy(update={"bandwidth": cluster.inter_node.bandwidth / 4})

    copy = cluster.model_copy(update={"inter_node": link})

    assert drawn.device.constants is None
    assert cluster.device.constants is not None
    assert cluster.link_between_nodes.bandwidth == pytest.approx(4 * copy.link_between_nodes.bandwidth)
    assert cluster.device.model_copy(update={"name": "unknown"}).constants is None
