"""Endpoints for operators: ``/healthz`` and ``/metrics``."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tornado.web import ErrorHandler, RequestHandler

from meshwave.designer.server.sessions import open_sessions
from meshwave.designer.state.studio import Studio
from meshwave.engine.runs import State

TEXT_FORMAT = "text/plain; version=0.0.4; charset=utf-8"


class Metric(NamedTuple):
    """A metric with its samples, written in Prometheus' text format."""

    name: str
    kind: str  # gauge or counter
    help: str
    samples: Iterable[tuple[str, float]]  # formatted labels, and the value

    def __str__(self) -> str:
        lines = [f"# HELP {self.name} {self.help}", f"# TYPE {self.name} {self.kind}"]
        return "\n".join([*lines, *(f"{self.name}{labels} {value}" for labels, value in self.samples)])


class Health(RequestHandler):
    """Request handler for health checks, which need no authentication."""

    def get(self) -> None:
        """Respond that the server is up."""
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.finish("ok\n")


class Metrics(RequestHandler):
    """Request handler for the metrics of the server and its process, which require a token."""

    def initialize(self, studio: Studio) -> None:
        """Set the studio for which metrics are reported."""
        self._studio = studio

    def get(self) -> None:
        """Send the metrics."""
        application: Any = self.application
        if not application.auth_provider.can_read_metrics(self):
            self.send_error(403)
            return
        connections = [session.connection_count for session in open_sessions(application)]
        metrics = (*_server_metrics(self._studio, connections), *_process_metrics())
        self.set_header("Content-Type", TEXT_FORMAT)
        self.finish("".join(f"{metric}\n" for metric in metrics))


def metrics_routes(studio: Studio) -> list[Any]:
    """Return the routes that take precedence over those of Bokeh and Panel."""
    return [
        (r"/healthz", Health),
        (r"/metrics", Metrics, {"studio": studio}),
        (r".*%00.*", ErrorHandler, {"status_code": 404}),  # opening a file with such a name raises
        (r"/\w+/static/.*", ErrorHandler, {"status_code": 404}),  # Bokeh repeats its scripts below every page
        (r"/components/.*", ErrorHandler, {"status_code": 404}),  # Panel would import the module in the path
    ]


def _server_metrics(studio: Studio, connections: list[int]) -> Iterator[Metric]:
    states = {**dict.fromkeys(State, 0), **studio.record.count_by_state()}
    yield _gauge(
        "meshwave_sessions", "Open tabs, including closed tabs whose session has not expired.", len(connections)
    )
    yield _gauge("meshwave_connections", "Connected browsers.", sum(connections))
    yield Metric("meshwave_edits_total", "counter", "Edits of designs.", [("", studio.counts["edits"])])
    runs = [(f'{{state="{state.lower()}"}}', count) for state, count in states.items()]
    yield Metric("meshwave_runs", "gauge", "Runs in the run database, by state.", runs)
    processes = sum(entry.processes for entry in studio.record.active_runs())
    yield _gauge("meshwave_processes", "Processes of active runs.", processes)


def _process_metrics() -> Iterator[Metric]:
    name = "process_cpu_seconds_total"
    yield Metric(name, "counter", "Processor time of the server.", [("", time.process_time())])
    proc = Path("/proc/self")
    if not proc.exists():  # not Linux
        return
    pages = int(Path(proc, "statm").read_text().split()[1])
    memory = pages * os.sysconf("SC_PAGE_SIZE")
    yield _gauge("process_resident_memory_bytes", "Resident memory of the server.", memory)
    yield _gauge("process_open_fds", "Open files of the server.", len(os.listdir(proc / "fd")))


def _gauge(name: str, help: str, value: float) -> Metric:
    return Metric(name, "gauge", help, [("", value)])
