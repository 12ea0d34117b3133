"""``meshwave serve`` as a process: opening of a browser, and the log."""

from __future__ import annotations

import os
import re
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from meshwave.engine.files import import_path
from tests.conftest import PATIENCE_S, wait_until

RECORDER = """#!{python}
import sys
import time
from pathlib import Path
Path({record!r}).write_text("\\n".join(sys.argv[1:]))
"""


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., tuple[subprocess.Popen[str], str]]]:
    """Start the command with an environment; return the process and its link."""
    processes = []

    def start(*arguments: str, **environment: str) -> tuple[subprocess.Popen[str], str]:
        command = [
            sys.executable,
            "-m",
            "meshwave.designer.main",
            "serve",
            "--home",
            str(tmp_path / "home"),
            *arguments,
        ]
        names = {"PYTHONPATH": import_path(), "TMPDIR": str(tmp_path), **environment}
        process = subprocess.Popen(
            command, env={**os.environ, **names}, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        processes.append(process)
        assert process.stdout is not None
        link = next(found[0] for line in process.stdout if (found := re.search(r"http://\S+", line)))
        return process, link

    yield start
    for process in processes:
        process.kill()
        process.communicate()


@pytest.mark.slow
@pytest.mark.nightly
def test_the_browser_opens_a_private_file_that_is_deleted_afterwards(
    serve: Callable[..., tuple[subprocess.Popen[str], str]], tmp_path: Path
) -> None:
    record, browser = tmp_path / "arguments", tmp_path / "browser"
    browser.write_text(RECORDER.format(python=sys.executable, record=str(record)))
    browser.chmod(0o700)

    _, link = serve(DISPLAY=":99", BROWSER=f"{browser} %s")

    arguments = wait_until(lambda: record.exists() and record.read_text())
    assert link.partition("token=")[2] not in arguments
    page = Path(arguments.removeprefix("file://"))
    assert f'url={link}"' in page.read_text("utf-8")
    assert stat.S_IMODE(page.stat().st_mode) == 0o600
    assert stat.S_IMODE(page.parent.stat().st_mode) == 0o700
    urlopen(link, timeout=20).close()
    assert wait_until(lambda: not page.parent.exists())


@pytest.mark.slow
def test_the_log_does_not_contain_the_token(serve: Callable[..., tuple[subprocess.Popen[str], str]]) -> None:
    process, link = serve("--no-browser")
    request = Request(link, headers={"Host": "example.org"})
    embedded = Request(link.replace("/?", "/autoload.js?bokeh-autoload-element=x&bokeh-session-id=&"))
    for each, refusal in ((request, 403), (embedded, 404)):
        with pytest.raises(HTTPError) as refused:
            urlopen(each, timeout=20)
        assert refused.value.code == refusal

    process.terminate()
    _, log = process.communicate(timeout=PATIENCE_S)

    assert "GET /refused" in log and "404 GET /autoload.js" in log
    assert link.partition("token=")[2] not in log


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="Windows has no such signal")
def test_the_server_stops_as_with_ctrl_c_when_its_terminal_is_closed(
    serve: Callable[..., tuple[subprocess.Popen[str], str]],
) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # where the tests run with nohup, the server would ignore it
    try:
        process, _ = serve("--no-browser")
    finally:
        signal.signal(signal.SIGHUP, before)
    time.sleep(1)  # the link is printed before the event loop starts

    process.send_signal(signal.SIGHUP)
    _, log = process.communicate(timeout=PATIENCE_S)

    assert (process.returncode, log) == (0, "")
