"""Runs on this machine: each ends with a reason, and no process remains."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from meshwave.engine.bench.launch_figures import measure_launch_times
from meshwave.engine.cli import main as cli
from meshwave.engine.cli.launch import Progress
from meshwave.engine.errors import RunError
from meshwave.engine.findings import DesignError
from meshwave.engine.predict.prediction import predict
from meshwave.engine.runs import Record, Run, State, read_bundle, reconcile
from meshwave.engine.runs.launchers import open_run
from meshwave.engine.runs.launchers._environment import PASSED_ON, process_environment
from meshwave.engine.runs.launchers.local import LocalLauncher
from meshwave.engine.runs.process_identity import handle
from meshwave.engine.runtime.processes.run_processes import RunProcesses
from tests.engine.runs.play import HERE, draw, have_all_ended, logged_events, processes, submit, wait_until

pytestmark = pytest.mark.slow


def test_a_run_succeeds_and_can_be_followed(either_launcher: LocalLauncher) -> None:
    seen: list[tuple[State, int]] = []

    run = submit(either_launcher, draw(steps=20))
    state = run.wait(lambda run: seen.append((run.state, run.progress.done)), timeout_s=30)

    assert (state, run.reason) == (State.SUCCEEDED, "20 of 20 steps")
    assert seen == sorted(seen, key=lambda now: now[1])
    assert {state for state, _ in seen} >= {State.RUNNING, State.SUCCEEDED}
    assert [row["step"] for row in run.metrics()] == list(range(20))
    assert [row["step"] for row in run.metrics(since=18)] == [18, 19]
    assert [str(line) for line in run.log()] == [f"[{p}] process {p} is done" for p in range(4)]
    assert run.created_s <= run.first_step_s <= run.finished_s  # type: ignore[operator]
    assert run.created_s <= run.started_s <= run.finished_s  # type: ignore[operator]
    assert read_bundle(run.folder).program.digest == run.entry.digest
    assert have_all_ended(run)


def test_the_result_is_written_to_the_run_folder(launcher: LocalLauncher) -> None:
    run = submit(launcher, draw("leave in 1", pp=2))
    run.wait(timeout_s=30)

    result = run.result()

    assert result is not None
    assert (result.state, result.reason, result.cause) == ("FAILED", run.reason, 1)
    assert [(end["process"], end["mesh"]) for end in result.exits] == [(0, "M0"), (1, "M1")]
    assert [transition.state for transition in launcher.record.history(run.id)] == ["STARTING", "RUNNING", "FAILED"]


def test_the_first_failing_rank_is_the_reason(launcher: LocalLauncher) -> None:
    run = submit(launcher, draw("raise in 2", steps=1000))

    assert run.wait(timeout_s=30) is State.FAILED
    assert run.reason == "mesh M2, rank 2, action 3 of 9, 2F1: ValueError('shapes differ')"
    assert (run.folder / "error-0.json").exists(), "others failed in its wake"
    assert have_all_ended(run)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("leave in 1", "mesh M1, process 1 exited with status 3 and reported no error; .*: I have had enough"),
        ("abort in 3", r"mesh M3, process 3 was terminated by SIGABRT \(exit -6\); .*a size mismatch; .*EnforceNotMet"),
    ],
)
def test_a_process_that_ends_without_an_error_is_named(launcher: LocalLauncher, name: str, reason: str) -> None:
    run = submit(launcher, draw(name, steps=1000))

    assert run.wait(timeout_s=30) is State.FAILED
    assert re.match(reason, run.reason), run.reason
    assert have_all_ended(run)


def test_a_rank_that_is_killed_ends_the_run(either_launcher: LocalLauncher) -> None:
    run = submit(either_launcher, draw("sleep"))
    wait_until(lambda: logged_events(run, "step", process=1))

    os.kill(processes(run)[1].pid, signal.SIGKILL)

    assert run.wait(timeout_s=30) is State.FAILED
    assert run.reason.startswith("mesh M1, process 1 was terminated by SIGKILL")
    assert have_all_ended(run)


def test_a_killed_process_is_distinguished_from_terminated_ones(tmp_path: Path) -> None:
    told = RunProcesses("run", tmp_path, 2, alive={11: 0, 12: 1}, kill_at=float("inf"))
    told.record_exits({11: 1, 12: -signal.SIGKILL})
    assert [ours for _, _, ours, _ in told.exits] == [True, False]

    killed = RunProcesses("run", tmp_path, 1, alive={11: 0}, kill_at=0.0, is_killed=True)
    killed.record_exits({11: -signal.SIGKILL})
    assert [ours for _, _, ours, _ in killed.exits] == [True]


@pytest.mark.parametrize("name", ["sleep", "ignore"])
def test_a_cancelled_run_leaves_no_processes(either_launcher: LocalLauncher, name: str) -> None:
    run = submit(either_launcher, draw(name))
    wait_until(lambda: logged_events(run, "step" if name == "sleep" else "deaf"))

    run.cancel()

    assert run.wait(timeout_s=30) is State.CANCELLED
    assert run.reason == "cancelled after 1 of 3 steps"
    assert have_all_ended(run)
    run.cancel()  # once more does no harm


def test_a_run_whose_folder_is_removed_ends_and_can_be_cancelled(launcher: LocalLauncher) -> None:
    run = submit(launcher, draw("sleep"))
    assert processes(run)

    run.folder.rename(run.folder.with_suffix(".away"))
    run.cancel()

    assert run.wait(timeout_s=30) is State.FAILED
    assert run.reason  # that the folder is gone, or what a process could not write there
    assert have_all_ended(run)


def test_an_end_that_cannot_be_recorded_is_recorded_at_the_next_poll(
    launcher: LocalLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(run: str, state: State, reason: str = "") -> bool:
        raise RunError("the record cannot be written: the disk is full")

    with monkeypatch.context() as disk:
        disk.setattr(launcher.record, "change_state", full)
        run = submit(launcher, draw())
        assert run.wait(timeout_s=30) is State.SUCCEEDED
        assert launcher.record.get(run.id).state is State.STARTING

    reconcile(launcher.record)

    assert launcher.record.get(run.id).reason == "3 of 3 steps"
    assert launcher.record.get(run.id).state is State.SUCCEEDED


def test_cancel_ends_a_stopped_process(launcher: LocalLauncher) -> None:
    run = submit(launcher, draw("sleep"))
    wait_until(lambda: logged_events(run, "step"))
    os.kill(processes(run)[2].pid, signal.SIGSTOP)

    run.cancel()

    assert run.wait(timeout_s=30) is State.CANCELLED
    assert have_all_ended(run)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux says that a process is stopped")
def test_a_stopped_process_is_named_until_it_continues(
    launcher: LocalLauncher, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MESHWAVE_HOME", str(launcher.record.place))
    run, tell = submit(launcher, draw("sleep")), Progress()
    pid = processes(run)[2].pid
    assert run.stopped_process_lines() == []

    os.kill(pid, signal.SIGSTOP)

    words = f"process 2 is stopped and does not respond; continue it (kill -CONT {pid}), or cancel the run"
    assert wait_until(run.stopped_process_lines) == [words]
    assert words in run.notes()
    tell(run)
    tell(run)
    assert capsys.readouterr().err.count(words) == 1
    cli.main(["runs", "list"])
    assert f"\n  {words}\n" in capsys.readouterr().out
    cli.main(["runs", "--json"])
    assert json.loads(capsys.readouterr().out)["runs"][0]["stopped"] == [words]
    os.kill(pid, signal.SIGCONT)
    wait_until(lambda: not run.stopped_process_lines())


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux says that a process is stopped")
def test_cancel_ends_a_run_whose_warm_process_is_stopped(own_launcher: LocalLauncher) -> None:
    run = submit(own_launcher, draw("sleep"))
    processes(run)
    assert own_launcher._warm_process is not None
    os.kill(own_launcher._warm_process.pid, signal.SIGSTOP)
    assert "the process that starts the run's workers is stopped" in wait_until(run.stopped_process_lines)[0]

    open_run(Record(own_launcher.record.place), run.id).cancel()  # as another process does

    assert run.wait(timeout_s=30) is State.CANCELLED
    assert have_all_ended(run)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux says that a process is stopped")
def test_cancel_ends_a_run_whose_app_is_stopped(tmp_path: Path) -> None:
    owner, run = launch_from_process(tmp_path / "home", "train", tmp_path)
    with owner:
        owner.send_signal(signal.SIGSTOP)
        assert "the process that launched it is stopped" in wait_until(run.stopped_process_lines)[0]

        run.cancel()

        assert run.wait(timeout_s=30) is State.CANCELLED
        assert have_all_ended(run)
        owner.kill()


def test_processes_started_by_a_rank_end_with_it(launcher: LocalLauncher) -> None:
    run = submit(launcher, draw("bear in 0"))
    child = handle(wait_until(lambda: logged_events(run, "bore"))[0]["pid"])
    assert child is not None

    run.cancel()

    assert run.wait(timeout_s=30) is State.CANCELLED
    assert not child.is_alive()


def test_a_run_that_waits_for_its_launcher_is_cancelled_at_once(record: Record, tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("import time\ntime.sleep(600)\n")
    launcher = LocalLauncher(record, start="fork", worker="slow", path=tmp_path)
    run = submit(launcher, draw())

    run.cancel()

    assert (run.state, run.reason) == (State.CANCELLED, "cancelled before it started")
    launcher.close()


def test_closing_the_launcher_ends_its_runs(own_launcher: LocalLauncher) -> None:
    run = submit(own_launcher, draw("sleep"))
    wait_until(lambda: logged_events(run, "step"))

    own_launcher.close()

    assert (run.state, run.reason) == (State.CANCELLED, "cancelled after 1 of 3 steps: Meshwave was closed")
    assert have_all_ended(run)


def test_no_process_remains_after_the_warm_process_is_killed(either_launcher: LocalLauncher) -> None:
    run = submit(either_launcher, draw("sleep"))
    assert len(processes(run)) == 4
    wait_until(lambda: logged_events(run, "step"))

    assert either_launcher._warm_process is not None
    os.kill(either_launcher._warm_process.pid, signal.SIGKILL)

    assert run.wait(timeout_s=30) is State.LOST
    assert "terminated by SIGKILL, after 1 of 3 steps" in run.reason
    wait_until(lambda: have_all_ended(run), "the end of its processes")
    assert submit(either_launcher, draw()).wait(timeout_s=30) is State.SUCCEEDED, "another warm process takes its place"


def launch_from_process(home: Path, name: str, tmp_path: Path) -> tuple[subprocess.Popen[str], Run]:
    """Launch a run from another process, like an app or a command line would."""
    design = tmp_path / "design.json"
    design.write_text(draw(name, steps=100_000).to_json())
    owner = subprocess.Popen(
        [sys.executable, str(HERE / "owner.py"), str(home), str(design)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(HERE.parents[2])},
    )
    assert owner.stdout is not None
    run = open_run(Record(home), owner.stdout.readline().strip())
    processes(run)
    wait_until(lambda: logged_events(run, "step"))
    return owner, run


def test_a_killed_designer_leaves_no_process_and_its_run_is_lost(tmp_path: Path) -> None:
    owner, run = launch_from_process(tmp_path / "home", "sleep", tmp_path)
    with owner:
        owner.kill()
    wait_until(lambda: have_all_ended(run), "the end of its processes")
    assert run.state is State.RUNNING, "nobody was there to write it down"

    record = Record(tmp_path / "home")
    reconcile(record)

    assert record.get(run.id).state is State.LOST
    assert f"process {owner.pid}, which launched the run, ended after 1 of" in record.get(run.id).reason
    assert (run.folder / "rank-0.log").exists()


def test_a_run_of_another_process_is_followed_and_cancelled(tmp_path: Path) -> None:
    owner, run = launch_from_process(tmp_path / "home", "train", tmp_path)
    with owner:
        record = Record(tmp_path / "home")
        reconcile(record)
        assert record.get(run.id).state is State.RUNNING, "its launcher lives"
        done = run.progress.done
        wait_until(lambda: run.progress.done > done, "a further step")
        other = LocalLauncher(record)
        queued = submit(other, draw())
        assert queued.waiting_reason == f"position 1 of 1 in the queue; run {run.id} is active"
        queued.cancel()
        other.close()
        assert (queued.state, queued.reason) == (State.CANCELLED, "cancelled before it started")

        run.cancel()

        assert run.wait(timeout_s=30) is State.CANCELLED
        assert have_all_ended(run)
        owner.kill()


def test_a_result_that_was_not_recorded_is_recorded_later(record: Record, launcher: LocalLauncher) -> None:
    gone = {"owner": ["an earlier start", 1, "1"], "processes": []}
    entry, _ = record.submit(name="", launcher="local", handle=gone, digest="", processes=1, steps=1)
    record.change_state(entry.id, State.RUNNING)
    record.folder(entry.id).mkdir()
    (record.folder(entry.id) / "result.json").write_text('{"state": "SUCCEEDED", "reason": "1 of 1 steps"}')

    reconcile(record)

    assert record.get(entry.id).state is State.SUCCEEDED


def test_a_process_that_took_over_a_number_is_not_signalled(record: Record) -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as bystander:
        alive = handle(bystander.pid)
        assert alive is not None
        then = alive._replace(born="1")
        entry, _ = record.submit(
            name="", launcher="local", handle={"owner": then, "processes": [then]}, digest="", processes=1, steps=1
        )

        reconcile(record)

        assert record.get(entry.id).state is State.LOST
        assert alive.is_alive()
        bystander.kill()


def test_a_request_submitted_twice_creates_one_run(launcher: LocalLauncher) -> None:
    design = draw("sleep")

    run = submit(launcher, design, key="a click")
    again = submit(launcher, design, key="a click")
    assert again.id == run.id
    assert len(launcher.record.entries()) == 1
    run.cancel()
    assert run.wait(timeout_s=30) is State.CANCELLED


def test_a_process_receives_the_listed_variables_only(
    either_launcher: LocalLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLOUD_TOKEN", "secret")
    monkeypatch.setenv("MASTER_ADDR", "elsewhere")
    monkeypatch.setenv("NCCL_DEBUG", "INFO")

    run = submit(either_launcher, draw("look", pp=2, dp=2))
    assert run.wait(timeout_s=30) is State.SUCCEEDED, run.reason
    found = json.loads((run.folder / "look-3.json").read_text())

    seen = found.pop("environment")
    assert not {"CLOUD_TOKEN", "MASTER_ADDR"} & seen.keys()
    assert (seen["RANK"], seen["LOCAL_RANK"], seen["WORLD_SIZE"]) == ("3", "3", "4")
    assert (seen["OMP_NUM_THREADS"], seen["NCCL_DEBUG"]) == ("1", "INFO")
    log = str(run.folder / "rank-3.log")
    assert found == {
        "descriptors": ["/dev/null", log, log],
        "others": 0,
        "folder": str(run.folder),
        "umask": 0o077,
        "session": True,
        "core": 0,
    }


def test_processes_use_the_loopback_by_default() -> None:
    loopback = "lo" if sys.platform.startswith("linux") else "lo0"

    assert process_environment(given={})["GLOO_SOCKET_IFNAME"] == loopback
    assert process_environment(given={"GLOO_SOCKET_IFNAME": "eth0"})["GLOO_SOCKET_IFNAME"] == "eth0"


def test_processes_find_the_same_packages_and_receive_no_secrets() -> None:
    secrets = dict.fromkeys(("A_TOKEN", "TORCH_API_TOKEN", "NCCL_SECRET", "GLOO_KEY", "CUDA_PASSWORD"), "secret")
    given = {"PYTHONPATH": os.pathsep.join(["here", "/there"]), "TORCH_NCCL_HIGH_PRIORITY": "0", **secrets}

    seen = process_environment(Path("/mine"), given)

    assert seen["PYTHONPATH"].split(os.pathsep)[-3:] == ["/mine", str(Path.cwd() / "here"), "/there"]
    assert seen["TORCH_NCCL_HIGH_PRIORITY"] == "0"
    assert not secrets.keys() & seen.keys()


def test_every_variable_that_is_passed_on_is_documented() -> None:
    page = (HERE.parents[2] / "docs/reference/run-folder.md").read_text("utf-8")

    assert [name for name in sorted(PASSED_ON) if f"`{name}`" not in page] == []


def test_designs_that_cannot_run_are_refused_at_their_key(launcher: LocalLauncher) -> None:
    cut = [{"name": "A", "devices": [0, 1], "axes": {"tp": 2}}, {"name": "B", "devices": [2], "axes": {}}]
    torn = [{"name": "A", "devices": [0], "axes": {}}, {"name": "B", "devices": [1, 2], "axes": {"dp": 2}}]

    def refusal_of_launch(**changes: object) -> str:
        with pytest.raises(DesignError) as refusal:
            submit(launcher, draw(pp=3, **changes))
        return str(refusal.value)

    chimera = {"schedule": "chimera", "microbatches": 2}
    assert refusal_of_launch(meshes=cut, pipeline=chimera).startswith(
        "meshes: chimera places replicas of a stage on several meshes, which must have the same tp (tp=2 on A, tp=1 on B)"
    )
    assert refusal_of_launch(meshes=torn, training={"micro_batch_size": 1}).startswith(
        "meshes[1].axes.dp: a microbatch has 1 sequences"
    )
    with pytest.raises(DesignError, match="66 devices, and at most 64 processes"):
        submit(launcher, draw(pp=2, dp=33))
    few = {"kind": "bert", "layers": 4, "hidden": 16, "heads": 2, "sequence": 12, "vocab": 256}
    assert refusal_of_launch(model=few).startswith(
        "model.vocab: a bert reads text as bytes and needs a vocab of at least 257, not 256"
    )
    assert launcher.record.entries() == [], "a run that is refused is none"


def test_without_torch_the_refusal_names_the_installation(
    launcher: LocalLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meshwave.engine.runs.launchers._machine.find_spec", lambda name: None)

    assert not launcher.probe().can_launch
    with pytest.raises(RunError, match="pip install torch"):
        submit(launcher, draw())


def test_probing_launchers_imports_no_torch(tmp_path: Path) -> None:
    question = (
        "import sys; from meshwave.engine.runs import Record; from meshwave.engine.runs.launchers import launchers; from pathlib import Path;"
        "assert launchers['local'](Record(Path(sys.argv[1]))).probe(); assert 'torch' not in sys.modules"
    )

    subprocess.run([sys.executable, "-c", question, str(tmp_path)], check=True, cwd=HERE.parents[2])


def test_a_warm_process_with_old_code_is_replaced(own_launcher: LocalLauncher, monkeypatch: pytest.MonkeyPatch) -> None:
    assert submit(own_launcher, draw()).wait(timeout_s=30) is State.SUCCEEDED
    assert own_launcher._warm_process is not None
    old = own_launcher._warm_process
    assert submit(own_launcher, draw()).wait(timeout_s=30) is State.SUCCEEDED
    assert own_launcher._warm_process is old

    monkeypatch.setattr("meshwave.engine.runs.launchers.local._source_time_s", lambda: float("inf"))

    assert submit(own_launcher, draw()).wait(timeout_s=30) is State.SUCCEEDED
    assert own_launcher._warm_process is not old
    assert not old.is_alive


def test_launch_times_are_measured() -> None:
    prediction = predict(draw(steps=1_000_000))

    times = measure_launch_times(
        prediction, lambda record: LocalLauncher(record, start="fork", worker="stand_in", path=HERE)
    )

    assert min(times.values()) > 0


def test_a_worker_that_cannot_be_imported_is_the_reason(record: Record, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("raise ImportError('libtorch.so: not found')\n")
    launcher = LocalLauncher(record, start="fork", worker="broken", path=tmp_path)

    run = submit(launcher, draw())

    assert run.wait(timeout_s=30) is State.FAILED
    assert run.reason.endswith("ended with status 1: ImportError: libtorch.so: not found")
    launcher.close()


def test_a_missing_text_is_reported_before_a_run_is_created(launcher: LocalLauncher, tmp_path: Path) -> None:
    with pytest.raises(DesignError, match=r"training\.data: the text mine\.txt does not exist \(looked in "):
        submit(launcher, draw(training={"data": "mine.txt"}))
    with pytest.raises(DesignError, match=r"training\.data: the file .*mine\.txt does not exist"):
        submit(launcher, draw(), data=tmp_path / "mine.txt")

    assert launcher.record.entries() == []


def test_a_run_that_exceeds_the_memory_of_this_machine_is_refused(
    launcher: LocalLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    design = draw()
    needed = predict(design).memory.total_bytes.sum()
    monkeypatch.setattr("meshwave.engine.runs.launchers._machine.has_gpu", lambda: False)
    monkeypatch.setattr("meshwave.engine.runs.launchers._machine.total_memory_bytes", lambda: needed - 1)

    with pytest.raises(
        DesignError, match="the 4 processes need .* of memory together, and this machine has .* and no GPU"
    ):
        submit(launcher, design)

    assert launcher.record.entries() == []
    monkeypatch.setattr("meshwave.engine.runs.launchers._machine.has_gpu", lambda: True)
    assert submit(launcher, design).wait(timeout_s=30) is State.SUCCEEDED, "a GPU has memory of its own"
