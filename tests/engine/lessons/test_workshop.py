"""Workshops: plans, people, scores and results, and what survives a restart."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwave.designer.main import main
from meshwave.engine.document import parse_design
from meshwave.engine.document.fixes import apply_edits
from meshwave.engine.findings import DesignError, Refusal
from meshwave.engine.lessons.classroom import Classroom
from meshwave.engine.lessons.workshop import Workshop, read_workshop, score_design
from meshwave.engine.predict.prediction import predict

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "docs/examples/workshop.toml"


@pytest.fixture(scope="module")
def workshop() -> Workshop:
    return read_workshop(EXAMPLE)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def classroom(tmp_path: Path, workshop: Workshop, clock: Clock) -> Classroom:
    return Classroom(tmp_path / "class", workshop, clock)


def join(classroom: Classroom, name: str) -> str:
    found = classroom.find_by_key(classroom.join(classroom.code, name))
    assert found is not None
    return found


def refused_code(call: object, *arguments: object) -> str:
    with pytest.raises(Refusal) as refusal:
        call(*arguments)  # type: ignore[operator]
    return refusal.value.problem.code


def test_the_example_of_the_documentation_is_read(workshop: Workshop) -> None:
    assert workshop.lessons[0] == "01-why-pipelines"
    assert workshop.challenge("fastest-step").best == "smallest"
    assert refused_code(workshop.challenge, "fastest") == "lesson_unknown_name"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "code"),
    [
        ('title = "x"\nlessons = ["none"]', "lesson_unknown_name"),
        ('title = "x"\npeople = 0', "out_of_range"),
        ("people = 4", "missing_key"),
        ('title = "x', "invalid_toml"),
        ("a = " + "[" * 100_000, "nested_toml"),
        (f"{'a.' * 5000}b = 1", "nested_toml"),
        (f"people = {'9' * 5000}", "long_number"),
        (
            'title="x"\n[[challenges]]\nname="a"\ntitle="a"\ntext="a"\ndesign="d"\nnumber="makespan_s"\nbest="smallest"',
            "lesson_unknown_name",
        ),
        (
            'title="x"\n[designs.d]\nexample="01-first-wave"\n[[challenges]]\nname="a"\ntitle="a"\ntext="a"\ndesign="d"'
            '\nnumber="makespan_s"\nbest="smallest"\nfixed=["clutter"]',
            "lesson_unknown_name",
        ),
    ],
)
def test_a_wrong_plan_is_refused(tmp_path: Path, text: str, code: str) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(text)
    with pytest.raises(DesignError) as error:
        read_workshop(plan)
    assert code in {each.code for each in error.value.problems}
    assert all(each.where.startswith("plan.toml") for each in error.value.problems)


def test_people_join_with_the_code_and_a_name_of_their_own(classroom: Classroom) -> None:
    ada = join(classroom, "  Ada   Lovelace ")
    assert classroom.person(ada).name == "Ada Lovelace"
    assert refused_code(classroom.join, "WRONG", "Grace") == "workshop_wrong_code"
    assert refused_code(classroom.join, classroom.code, "ada lovelace") == "workshop_name_taken"
    assert refused_code(classroom.join, classroom.code, " ") == "workshop_name"
    assert refused_code(classroom.join, classroom.code, "x" * 41) == "workshop_name"
    assert refused_code(classroom.join, classroom.code, "\u200b\u2060") == "workshop_name"
    for twin in ("Ada Love\u200blace", "\u202eAda Lovelace"):  # they look like the first one, or turned around
        assert refused_code(classroom.join, classroom.code, twin) == "workshop_name_taken"
    assert classroom.find_by_key("") is None
    assert join(classroom, "Grace") != ada


def test_a_person_who_signed_out_joins_again_under_the_same_name(classroom: Classroom) -> None:
    key = classroom.join(classroom.code, "Ada")
    ada = classroom.find_by_key(key)
    classroom.forget_key(key)
    assert classroom.find_by_key(key) is None
    assert classroom.find_by_key(classroom.join(classroom.code, "ADA")) == ada
    assert refused_code(classroom.join, classroom.code, "Ada") == "workshop_name_taken"


def test_a_full_workshop_admits_nobody(classroom: Classroom) -> None:
    for number in range(classroom.workshop.plan.people):
        classroom.join(classroom.code, f"learner {number}")
    assert refused_code(classroom.join, classroom.code, "one more") == "workshop_full"


def test_the_time_at_a_step_starts_when_the_step_changes(classroom: Classroom, clock: Clock) -> None:
    ada = join(classroom, "Ada")
    clock.now += 60
    classroom.record_open_step(ada, "02-bubbles-and-microbatches", 1, "draft")
    clock.now += 60
    classroom.record_open_step(ada, "02-bubbles-and-microbatches", 1, "another draft")
    person = classroom.person(ada)
    assert (person.since_s, person.step, person.draft) == (1060.0, 1, "another draft")
    seen = classroom.changes
    classroom.record_open_step(ada, "02-bubbles-and-microbatches", 1, "another draft")
    assert classroom.changes == seen


def test_the_best_score_counts_and_equal_ones_by_time(classroom: Classroom, clock: Clock) -> None:
    design = classroom.workshop.designs["start"]
    challenge = classroom.workshop.challenge("fastest-step")
    score = score_design(challenge, design, predict(design))
    ada, grace = join(classroom, "Ada"), join(classroom, "Grace")
    assert classroom.submit(grace, challenge.name, score, design)
    clock.now += 1
    assert classroom.submit(ada, challenge.name, score, design)
    assert not classroom.submit(ada, challenge.name, score._replace(value=2 * score.value), design)
    assert [each["name"] for each in classroom.leaderboard(challenge.name)] == ["Grace", "Ada"]
    assert classroom.submit(ada, challenge.name, score._replace(value=score.value / 2), design)
    assert [each["rank"] for each in classroom.leaderboard(challenge.name) if each["name"] == "Ada"] == [1]
    assert classroom.read_submission(ada, challenge.name) == design


def test_a_dry_run_confirms_the_design_that_was_submitted(classroom: Classroom) -> None:
    design = classroom.workshop.designs["start"]
    challenge = classroom.workshop.challenge("fastest-step")
    score = score_design(challenge, design, predict(design))
    ada = join(classroom, "Ada")
    classroom.submit(ada, challenge.name, score, design)

    def shown() -> tuple[str, str]:
        (leader,) = classroom.leaderboard(challenge.name)
        return leader["run"], leader["result"]

    assert shown() == ("", "")
    classroom.add_dry_run(ada, challenge.name, "run-1")
    classroom.record_results(lambda run: "")
    assert shown() == ("run-1", "")
    before = classroom.changes
    classroom.record_results(lambda run: f"{run}: 12 ms measured")
    assert shown() == ("run-1", "run-1: 12 ms measured")
    assert classroom.changes == before + 1
    classroom.record_results(lambda run: "again")
    assert shown() == ("run-1", "run-1: 12 ms measured")
    classroom.submit(ada, challenge.name, score._replace(value=score.value / 2), design)
    assert shown() == ("", ""), "the dry run was of a worse design"


def test_a_design_that_misses_a_condition_has_no_score(workshop: Workshop) -> None:
    assert refused_score(workshop, "pipeline.microbatches", 8) == "workshop_condition_unmet"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("cluster.device.peak_flops", 1e15),
        ("cluster.intra_node.bandwidth", 1e12),
        ("model.layers", 32),
        ("cost.kind", "unit"),
    ],
)
def test_a_design_on_other_devices_or_of_another_model_has_no_score(
    workshop: Workshop, key: str, value: object
) -> None:
    assert refused_score(workshop, key, value) == "workshop_fixed_key"


def refused_score(workshop: Workshop, key: str, value: object) -> str:
    start, challenge = workshop.designs["start"], workshop.challenge("fastest-step")
    document = apply_edits(start.model_dump(mode="json"), [(key, value)])
    if key == "cost.kind":
        document = {**document, "cost": {"kind": value}}
    return refused_code(score_design, challenge, start, predict(parse_design(document)))


def test_a_restart_keeps_people_scores_and_the_announcement(
    classroom: Classroom, workshop: Workshop, clock: Clock
) -> None:
    key = classroom.join(classroom.code, "Ada")
    classroom.announce(message="look here", lesson="05-waves", step=2)
    classroom.announce(is_paused=True)
    classroom.close()
    again = Classroom(classroom.folder, workshop, clock)
    assert again.code == classroom.code
    assert again.person(again.find_by_key(key) or "").name == "Ada"
    told = again.announcement
    assert (told.message, told.lesson, told.step, told.is_paused) == ("look here", "05-waves", 2, True)


def test_a_short_code_of_an_older_version_is_replaced(classroom: Classroom) -> None:
    code = classroom.code
    classroom._execute("UPDATE facts SET value = 'ABC234' WHERE name = 'code'")
    again = Classroom(classroom.folder, classroom.workshop)

    assert len(again.code) == len(code) and again.code != code
    assert Classroom(classroom.folder, classroom.workshop).code == again.code


def test_a_removed_person_can_join_again(classroom: Classroom) -> None:
    ada = join(classroom, "Ada")
    classroom.remove(ada)
    assert refused_code(classroom.person, ada) == "workshop_unknown_person"
    assert join(classroom, "Ada") != ada


def test_results_are_printed_and_reset(
    tmp_path: Path, workshop: Workshop, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MESHWAVE_HOME", str(tmp_path))
    assert main(["workshop", str(EXAMPLE), "--results"]) == 2
    classroom = Classroom(tmp_path / "workshops" / "workshop", workshop)
    join(classroom, "Ada")
    classroom.reserve()
    assert main(["workshop", str(EXAMPLE), "--results"]) == 0
    assert "Ada: 0 checks passed in 0 lessons" in capsys.readouterr().out
    assert main(["workshop", str(EXAMPLE), "--reset"]) == 2
    assert "a server of the workshop 'workshop' is running" in capsys.readouterr().err
    classroom.close()
    assert main(["workshop", str(EXAMPLE), "--reset"]) == 0
    assert not (tmp_path / "workshops" / "workshop").exists()


@pytest.mark.parametrize("options", [["--address", "0.0.0.0"], ["--certificate", "none.pem"]])
def test_other_machines_are_served_with_tls_only(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["workshop", str(EXAMPLE), "--no-browser", *options]) == 2
    assert "certificate" in capsys.readouterr().err or options[0] == "--certificate"
