"""Permissions of each role on the pages, and actions of administrators."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from bokeh.document import Document
from panel.io.state import set_curdoc

from meshwave.designer.kit.canvas import Canvas
from meshwave.designer.pages.start_page import StartPage
from meshwave.designer.server.administration import Administration
from meshwave.designer.server.people import PersonStudios
from meshwave.designer.state.draft import Draft
from meshwave.designer.state.job_processes import Failed, JobUpdate
from meshwave.designer.state.jobs import Job, run_now
from meshwave.designer.state.studio import Studio
from meshwave.designer.views.profiles import Profiles
from meshwave.engine.document import load_design
from meshwave.engine.files import example
from meshwave.engine.findings import Refusal
from meshwave.engine.people.limits import Limits
from meshwave.engine.people.people_file import OWNER, Role, User
from meshwave.engine.predict.prediction import predict
from meshwave.engine.runs import State
from meshwave.engine.runs.launchers import specify_run
from meshwave.engine.runs.options import PLAIN, REHEARSAL
from tests.conftest import wait_until

FIRST = load_design(example("01-first-wave"))
VIEWER, DESIGNER, LAUNCHER, ADMIN = (User(role.value, role.value, role) for role in Role)


@pytest.fixture
def shared_studio(studio: Studio) -> Studio:
    """Return the studio of the server, which all people share."""
    return studio


@pytest.fixture
def studios(shared_studio: Studio, tmp_path: Path) -> PersonStudios:
    return PersonStudios(shared_studio, tmp_path / "people", Limits)


def refused_code(call: Any, *arguments: Any) -> str:
    try:
        call(*arguments)
    except Refusal as refusal:
        return refusal.problem.code
    return ""


def test_each_person_has_a_library_of_their_own(studios: PersonStudios, shared_studio: Studio, tmp_path: Path) -> None:
    design = studios.studio_of(DESIGNER).library.add(FIRST)
    assert (tmp_path / "people/designer/designs" / design / "design.json").exists()
    assert not studios.studio_of(LAUNCHER).library.has(design)
    assert studios.studio_of(OWNER) is shared_studio
    assert studios.studio_of(DESIGNER) is studios.studio_of(DESIGNER)


def test_new_limits_apply_to_open_pages(shared_studio: Studio, tmp_path: Path) -> None:
    limits = Limits()
    studios = PersonStudios(shared_studio, tmp_path / "people", lambda: limits)
    launches = studios.studio_of(LAUNCHER).launches
    assert refused_code(launches.open, "local") == ""
    limits = Limits(targets=("threads",))
    assert refused_code(launches.open, "local") == "launch_target"
    assert studios.studio_of(LAUNCHER).launches is launches


@pytest.mark.parametrize(("user", "code"), [(VIEWER, "read_only_design"), (DESIGNER, "")])
def test_viewers_edit_nothing(studios: PersonStudios, user: User, code: str) -> None:
    draft = Draft(studios.studio_of(user), "", lambda: True)
    edit = partial(draft.session.edit, "pipeline.microbatches", 12, "12 microbatches")
    assert refused_code(edit) == code
    assert studios.studio_of(user).library.has(draft.name) is (code == "")
    draft.release()


def test_a_viewer_only_reads_a_design_whose_link_is_for_editing(studios: PersonStudios, shared_studio: Studio) -> None:
    studio = studios.studio_of(DESIGNER)
    link = shared_studio.share(studio.library, studio.library.add(FIRST))
    drafts = [Draft(studios.studio_of(user), "", lambda: True, key=link.edit_key) for user in (VIEWER, LAUNCHER)]
    assert [draft.session.design for draft in drafts] == [FIRST, FIRST]
    edits = [partial(draft.session.edit, "pipeline.microbatches", 12, "12 microbatches") for draft in drafts]
    assert [refused_code(edit) for edit in edits] == ["read_only_design", ""]
    assert [person.name for person in drafts[0].session.people] == ["viewer", "launcher"]
    for draft in drafts:
        draft.release()


def test_viewers_change_nothing_on_the_start_page(studios: PersonStudios) -> None:
    studio = studios.studio_of(VIEWER)
    design = studio.library.add(FIRST)  # from a time with another role
    page = StartPage(studio, run_now)
    answers: list[str] = []
    page._send_msg = lambda message: answers.append(str(message["refused"]))  # type: ignore[method-assign]
    for gesture in ("rename", "duplicate", "delete", "restore", "tag"):
        page._handle_msg({"type": gesture, "design": design, "name": "other", "tags": "one"})
    page._handle_msg({"type": "open", "file": "design.json", "text": FIRST.to_json()})
    page.stop_jobs()

    assert answers == ["Saving designs needs the role designer; you are signed in as viewer"] * 6
    assert [card["id"] for card in studio.library.cards()] == [design]


@pytest.mark.parametrize(
    ("user", "dry_run", "training"),
    [(VIEWER, "role_required", "role_required"), (DESIGNER, "", "role_required"), (LAUNCHER, "", ""), (ADMIN, "", "")],
)
def test_designers_launch_dry_runs_and_launchers_training(
    studios: PersonStudios, user: User, dry_run: str, training: str
) -> None:
    launches, spec = studios.studio_of(user).launches, partial(specify_run, predict(FIRST))
    submitted = []

    class Target:
        def submit(self, spec: object, **options: object) -> None:
            submitted.append(options["person"])

    assert refused_code(launches.submit, Target(), spec(REHEARSAL), None) == dry_run
    assert refused_code(launches.submit, Target(), spec(PLAIN), None) == training
    assert submitted == [user.id] * [dry_run, training].count("")


@pytest.mark.parametrize(("user", "code"), [(LAUNCHER, "role_required"), (ADMIN, "")])
def test_administrators_alone_calibrate_the_machine(studios: PersonStudios, user: User, code: str) -> None:
    started: list[str] = []
    status = studios.studio_of(user).calibration.status
    calibration: Any = SimpleNamespace(start=started.append, status=status, subscribe=lambda listener: lambda: None)
    session = Draft(studios.studio_of(user), "", lambda: True).session
    view = Profiles(session, calibration, user=user)
    assert refused_code(view._on_measure, "mine") == code
    assert started == ([] if code else ["mine"])


# ---- administration ----


@pytest.fixture
def administration(shared_studio: Studio) -> Administration:
    made = Administration(shared_studio)
    made.application = SimpleNamespace(app_paths=[], get_sessions=lambda path: [])
    return made


def rows(administration: Administration, kind: str) -> list[dict[str, Any]]:
    tables = {table["kind"]: table for table in administration.read()["tables"]}
    return list(tables[kind]["rows"])


def test_the_load_of_the_machine_is_shown(administration: Administration) -> None:
    names = [name for name, _ in administration.read()["machine"]]
    assert names == ["Load", "Memory available", "Disk", "This server"]


def test_a_person_is_idle_since_the_page_reported_activity(administration: Administration) -> None:
    """A gesture that no widget handles, such as scrolling the timeline, ends the idle time as well."""
    document, canvas = Document(), Canvas()
    request = SimpleNamespace(user=DESIGNER, path="/ws", arrived_s=time.time() - 300)
    context = SimpleNamespace(request=request)
    document._session_context = lambda: context  # type: ignore[assignment,return-value]
    session = SimpleNamespace(id="s", connection_count=1, document=document)
    administration.application = SimpleNamespace(app_paths=["/"], get_sessions=lambda path: [session])
    assert rows(administration, "session")[0]["cells"][-2:] == ["5 min", "5 min"]
    with set_curdoc(document):
        canvas._handle_msg({"type": "active"})
    assert rows(administration, "session")[0]["cells"][-2:] == ["5 min", "0 s"]


def test_saved_designs_are_shown_with_their_limits(administration: Administration, studios: PersonStudios) -> None:
    assert rows(administration, "designs") == []
    studios.studio_of(DESIGNER).library.add(FIRST)
    own, total = (row["cells"] for row in rows(administration, "designs"))
    assert own[:2] == ["designer", "1 of 500"] and own[2].endswith(" of 500 MB")
    assert total[:2] == ["All people", "1"]


def test_an_administrator_cancels_a_run_and_its_row_disappears(
    administration: Administration, studios: PersonStudios, shared_studio: Studio
) -> None:
    shared_studio.launches.names = lambda: {"launcher": "Lin"}
    launches = studios.studio_of(LAUNCHER).launches
    run = launches.submit(
        launches.open("threads"), specify_run(predict(load_design(example("02-two-waves"))), REHEARSAL), None
    )
    (row,) = rows(administration, "run")
    assert row["cells"][1] == "Lin"
    assert row["question"].endswith("of Lin?")
    shared_studio.launches.failures[run.id] = "no answer"
    assert rows(administration, "run")[0]["cells"][2].endswith("; not cancelled: no answer")
    administration.stop("run", row["id"])
    assert run.wait(timeout_s=30) is State.CANCELLED
    assert run.reason.endswith("by an administrator")
    assert rows(administration, "run") == []
    assert refused_code(administration.stop, "run", row["id"]) == "run_is_over"


def test_an_administrator_stops_a_computation_and_its_page_learns_why(administration: Administration) -> None:
    update: list[JobUpdate] = []
    Job(partial(time.sleep, 60), "a long computation").add_listener(run_now, update.append)

    def job_rows() -> list[dict[str, Any]]:
        return [row for row in rows(administration, "job") if row["name"] == "a long computation"]

    (row,) = wait_until(lambda: [row for row in job_rows() if "cores" in row["cells"][2]])
    administration.stop("job", row["id"])
    assert wait_until(lambda: update) == [Failed("an administrator stopped it")]
    assert wait_until(lambda: not job_rows())
    assert refused_code(administration.stop, "job", row["id"]) == "job_is_over"
