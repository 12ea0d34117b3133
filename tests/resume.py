"""A plugin of pytest that records which tests have finished, so that a run that an internal error ended can be completed."""

from __future__ import annotations

import pytest

OPTION = "--resume"
FINISHED, INTERNAL_ERRORS = "meshwave/finished", "meshwave/internal_errors"
"""Keys in the cache of pytest: names of tests that passed, failed or were skipped; texts of internal errors."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(OPTION, action="store_true", help="run the tests that did not finish in the last run")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # the process that receives the reports of all workers of pytest-xdist
        config.pluginmanager.register(Record(config))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption(OPTION):
        finished = _finished(config)
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in finished])
        items[:] = [item for item in items if item.nodeid not in finished]


class Record:
    """The tests that have finished, and the internal errors."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._finished = _finished(config) if config.getoption(OPTION) else set()
        self._errors: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown":  # the last report of a test, whatever its result
            self._finished.add(report.nodeid)

    def pytest_internalerror(self, excrepr: object) -> None:
        self._errors.append(str(excrepr))

    def pytest_sessionfinish(self) -> None:
        assert self._config.cache is not None
        self._config.cache.set(FINISHED, sorted(self._finished))
        self._config.cache.set(INTERNAL_ERRORS, self._errors)


def _finished(config: pytest.Config) -> set[str]:
    assert config.cache is not None
    return set(config.cache.get(FINISHED, []))
