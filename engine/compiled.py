"""Compilation of modules with numba, if numba is installed.

Such a module contains only loops over lists and arrays that its callers allocate, so Python can run it too. Compilation
takes seconds, once for each installation: numba caches the result next to the source or in the user's cache folder.
"""

from __future__ import annotations

import importlib.util
import sys
import threading
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

_lock = threading.Lock()
_modules: dict[str, ModuleType | None] = {}


def compiled_module(name: str) -> ModuleType | None:
    """Return a copy of module ``name`` with compiled functions; None if numba is missing or fails.

    The first call in a process imports numba (half a second). Each function is compiled, or loaded from the cache of
    numba, when it is first called.
    """
    with _lock:
        if name not in _modules:
            _modules[name] = _compile(name)
        return _modules[name]


def _compile(name: str) -> ModuleType | None:
    try:
        from numba import njit
    except ImportError:  # not installed, or not for this version of Python or numpy
        return None
    source = importlib.util.find_spec(name)
    assert source is not None and source.origin is not None, name
    spec = importlib.util.spec_from_file_location(f"{name}_compiled", source.origin)
    assert spec is not None and spec.loader is not None, name
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module  # numba looks its functions up there
    spec.loader.exec_module(module)
    for key, value in list(vars(module).items()):
        if isinstance(value, FunctionType) and value.__module__ == module.__name__:
            setattr(module, key, _compile_function(njit, value))
    return module


def _compile_function(njit: Callable[..., Any], function: FunctionType) -> Any:
    # The functions allocate nothing. Counting references of the tables, at each call, would take most of the time.
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy", "_nrt": False}
    try:
        compiled = njit(cache=True, **options)(function)
        _empty_unreadable_index(compiled._cache._cache_file)
    except (RuntimeError, OSError):  # neither the folder of the source nor the user's cache folder is writable
        return njit(**options)(function)
    return compiled


def _empty_unreadable_index(cache: Any) -> None:
    """Empty an index of numba's cache that names a class which no longer exists, such as one of an earlier version.

    Numba reads the classes of the arguments before it compares the time of the source.
    """
    try:
        cache._load_index()
    except OSError:
        raise
    except Exception:
        cache.flush()
