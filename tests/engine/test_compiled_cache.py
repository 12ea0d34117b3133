"""Modules compiled with numba, and the cache of the compiled functions."""

from __future__ import annotations

import pickle
from pathlib import Path
from types import SimpleNamespace

import pytest

from meshwave.engine import compiled

SOURCE = "def double(number):\n    return 2 * number\n"


@pytest.mark.slow
def test_a_cache_that_names_a_class_of_an_earlier_version_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "looped.py").write_text(SOURCE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    first = compiled.compiled_module("looped")
    assert first is not None
    assert first.double(2) == 4
    [index] = tmp_path.glob("__pycache__/*.nbi")
    whole = index.read_bytes()
    version = pickle.loads(whole)
    renamed = pickle.dumps(SimpleNamespace(), protocol=0).replace(b"types\nSimpleNamespace", b"types\nRoom")
    index.write_bytes(pickle.dumps(version) + renamed)
    monkeypatch.delitem(compiled._modules, "looped")

    second = compiled.compiled_module("looped")

    assert second is not None
    assert second.double(3) == 6
    assert index.read_bytes()[: len(whole)] == whole
    monkeypatch.delitem(compiled._modules, "looped")
