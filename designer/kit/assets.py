"""What the browser is given of ``static/``: style sheets as text, all modules in one file that has a URL."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from bokeh.server.urls import toplevel_patterns
from panel.models.esm import ReactiveESM
from tornado.web import HTTPError, RequestHandler

from meshwave.engine.errors import MeshwaveError

YEAR_S = 365 * 24 * 3600
_SCRIPTS = ("theme.js", "import.js")  # no modules: they run in the head
_IMPORT = re.compile(r'^import (\{[^}]*\}) from "static/(\w+)\.js";$', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function\*?|class|const) (\w+))", re.MULTILINE)
_OTHER = re.compile(r"^(?:import|export)\b.*", re.MULTILINE)


def _folder() -> Path:
    """Return ``static/``: inside ``meshwave`` when installed, beside it in a checkout."""
    return Path(__file__).parents[2] / "static"


def read_static(name: str) -> str:
    """A file of ``static/``, as text."""
    return (_folder() / name).read_text(encoding="utf-8")


def linked(modules: Mapping[str, str]) -> str:
    """All ``modules`` by their names as one that exports each of them under its name: a page asks for one file and
    not for sixty, of which each costs a browser more than to compile it.

    Each becomes a function that gives what it exports, after those that it imports. They say ``import { NAMES } from
    "static/OTHER.js"`` and ``export`` before a function, a class or a const, on lines of their own.

    Raises:
        MeshwaveError: one says it otherwise, or imports itself by way of others.
    """
    done: dict[str, str] = {}

    def link(name: str, on_the_way: tuple[str, ...] = ()) -> None:
        if name in on_the_way:
            raise MeshwaveError(f"static/{name}.js imports itself: {' from '.join((*on_the_way, name))}")
        if name in done:
            return
        text = modules[name]
        for _, imported in _IMPORT.findall(text):
            link(imported, (*on_the_way, name))
        body = _EXPORT.sub("", _IMPORT.sub(_taken, text))
        if other := _OTHER.search(body):
            raise MeshwaveError(f"static/{name}.js: {other[0]!r} is no import or export that can be linked")
        done[name] = f"const ${name} = (() => {{\n{body}\nreturn {{ {', '.join(_EXPORT.findall(text))} }};\n}})();\n"

    for name in modules:
        link(name)
    return "".join(done.values()) + f"export {{ {', '.join(f'${name} as {name}' for name in done)} }};\n"


def _taken(imported: re.Match[str]) -> str:
    return f"const {imported[1].replace(' as ', ': ')} = ${imported[2]};"


_MODULES: Final = {
    path.stem: path.read_text(encoding="utf-8") for path in sorted(_folder().glob("*.js")) if path.name not in _SCRIPTS
}
_SERVED: Final = {"modules.js": linked(_MODULES), "import.js": read_static("import.js")}
_VERSION: Final = hashlib.sha256("".join(_SERVED.values()).encode()).hexdigest()[:16]


def _url(name: str) -> str:
    """Has the version, so that a browser keeps the file for good and asks for another one after an update."""
    return f"/assets/{_VERSION}/{name}"


def module(name: str) -> str:
    """What a widget has as its ``_esm``: the module ``static/NAME``, taken from all of them.

    A module that Panel is given as text is sent in every page, translated there from TypeScript, taken apart by a
    polyfill and compiled anew; what has a URL is kept, and compiled code with it.
    """
    stem = Path(name).stem
    if stem not in _MODULES:
        raise FileNotFoundError(f"static/{name} is missing from this installation")
    return f'export const {{ render }} = (await import(location.origin + "{_url("modules.js")}")).{stem};'


HEAD: Final = (
    f'{{% block preamble %}}<link rel="modulepreload" href="{_url("modules.js")}">{{% endblock %}}'
    f"{{% block postamble %}}<script>{read_static('theme.js')}</script>{{% endblock %}}"
)
"""The template of a page: modules come while its libraries start; the theme is set before anything is painted."""


class Assets(RequestHandler):
    """Serves the modules to whoever asks, as Panel does its own: they are public and hold nothing of a user."""

    def get(self, version: str, name: str) -> None:
        if version != _VERSION or name not in _SERVED:
            raise HTTPError(404)
        self.set_header("Content-Type", "text/javascript; charset=utf-8")
        self.set_header("Cache-Control", f"max-age={YEAR_S}, immutable")
        self.finish(_SERVED[name])


# Every server of this process has the route, as it has Panel's own, so that a widget works wherever it is shown.
toplevel_patterns.insert(0, (r"/assets/(\w+)/(\w+\.js)", Assets))
ReactiveESM.__javascript_raw__ = [_url("import.js")]
