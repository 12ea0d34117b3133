"""Files of ``static/`` for the browser: style sheets as text, modules, languages and fonts as URLs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Final

from bokeh.server.urls import toplevel_patterns
from panel.models.esm import ReactiveESM
from tornado.web import HTTPError, RequestHandler

from meshwave.engine.exports.pictures.palette import OPS

YEAR_S = 365 * 24 * 3600
_THEME, _ADDRESS, _NATIVE_IMPORT = "kit/theme.js", "kit/address.js", "kit/native_import.js"
_HEAD_SCRIPTS = (_THEME, _ADDRESS, _NATIVE_IMPORT)  # which are not modules
_WIDGETS = "widgets.js"  # the module that a page imports


def _static_folder() -> Path:
    """Return the path of ``static/``, which is inside ``meshwave`` if installed and next to it in a checkout."""
    return Path(__file__).parents[2] / "static"


def read_static(name: str) -> str:
    """Return the text of a file of ``static/``."""
    return (_static_folder() / name).read_text(encoding="utf-8")


def style_sheets(*names: str) -> list[str]:
    """Return the style sheets of a widget: the one that all widgets share, then the given files of ``static/``."""
    return [read_static(name) for name in ("kit/canvas.css", *names)]


def colour_rule(selector: str, ops: Mapping[str, str]) -> str:
    """Return a CSS rule that sets each custom property to the light and dark colours of an operation."""
    colours = (f"--{name}: light-dark({OPS['light'][op]}, {OPS['dark'][op]});" for name, op in ops.items())
    return f"{selector} {{ {' '.join(colours)} }}"


def modules_digest(modules: Mapping[str, bytes]) -> str:
    """Return the hash of the contents of all modules, computed as in ``scripts/bundle.js``."""
    return hashlib.sha256(b"".join(modules[name] for name in sorted(modules))).hexdigest()[:16]


def served_modules(folder: Path) -> dict[str, bytes]:
    """Return the contents of the modules in a folder by their relative paths.

    A ``bundle.js`` (``npm run bundle``) that was built from exactly these modules replaces them: a first visit then
    loads one file instead of a hundred.
    """
    modules = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*.js")}
    bundle = modules.pop("bundle.js", b"")
    if bundle.startswith(f"// {modules_digest(modules)}\n".encode()):
        return {_WIDGETS: bundle, _NATIVE_IMPORT: modules[_NATIVE_IMPORT]}
    return modules


_MODULES: Final = served_modules(_static_folder())
_VERSION: Final = modules_digest(_MODULES)


def _module_url(name: str) -> str:
    """Return the URL of a module; it changes with the contents of the modules, so browsers can cache it permanently."""
    return f"assets/{_VERSION}/{name}"


def module_code(name: str) -> str:
    """Return the ``_esm`` code of a widget, which imports the module ``static/NAME`` by its URL.

    Panel embeds a module that is given as text in every page, where it is compiled again. A module that has a URL is
    cached by the browser, together with its compiled code.

    Raises:
        FileNotFoundError: ``static/widgets.js`` does not export the module.
    """
    if f'"{name}"' not in read_static(_WIDGETS):
        raise FileNotFoundError(f"static/{_WIDGETS} does not export static/{name}")
    at = _module_url(_WIDGETS)
    return f'export const render = await import(new URL("{at}", document.baseURI)).then(async (all) => (await all.ready, all["{name}"]));'


def _versioned_files(pattern: str) -> dict[tuple[str, str], bytes]:
    """Return the contents of files of ``static/`` by version and name; each has a version of its own."""
    return {
        (modules_digest({path.name: content}), path.relative_to(_static_folder()).as_posix()): content
        for path in sorted(_static_folder().glob(pattern))
        for content in [path.read_bytes()]
    }


def _locale_urls() -> dict[str, str]:
    """Return the URL of each language file, by the code of its language."""
    return {Path(name).stem: f"assets/{version}/{name}" for version, name in _LOCALES}


def _font_faces() -> str:
    """Return the elements that preload the fonts and declare them by weight."""
    urls = {name.removesuffix(".woff2")[-3:]: f"assets/{version}/{name}" for version, name in _FONTS}
    links = (f'<link rel="preload" href="{url}" as="font" type="font/woff2" crossorigin>' for url in urls.values())
    rules = (
        f"<style>@font-face {{ font-family: Roboto; font-weight: {weight}; src: url('{url}') }}</style>"
        for weight, url in urls.items()
    )
    return "".join((*links, *rules))


_LOCALES: Final = _versioned_files("locale/*.json")
_FONTS: Final = _versioned_files("fonts/*.woff2")  # named by their weight, such as roboto-400.woff2
_ASSETS: Final = {(_VERSION, name): content for name, content in _MODULES.items()} | _LOCALES | _FONTS
_CONTENT_TYPES: Final = {".json": "application/json; charset=utf-8", ".woff2": "font/woff2"}

_PRELOADED = "".join(
    f'<link rel="modulepreload" href="{_module_url(name)}">' for name in _MODULES if name not in _HEAD_SCRIPTS
)
_LANGUAGES = f'<meta name="meshwave-languages" content="{escape(json.dumps(_locale_urls()))}">'
TRANSLATION: Final = f'{_LANGUAGES}<script type="module" src="{_module_url(_WIDGETS)}"></script>'
"""Elements that show a page without widgets in the language of the user, or of a link with ``?lang=``."""
HEAD: Final = (
    f'{{% block preamble %}}<link rel="icon" href="favicon.ico">{_PRELOADED}{_font_faces()}'
    f"{_LANGUAGES}{{% endblock %}}"
    '{% block postamble %}<meta name="mw-signed-in-as" content="{{ signed_in_as | e }}">'
    f"<script>{read_static(_THEME)}{read_static(_ADDRESS)}</script>{{% endblock %}}"
)
"""Template of a page: it preloads the modules and fonts, names the languages and the person, and sets the theme early.
It also lets the page replace its link in the history of the tab instead of adding one.
"""


class Assets(RequestHandler):
    """Request handler for modules, languages and fonts. They need no authentication, like Panel's own modules."""

    def get(self, version: str, name: str) -> None:
        """Send a file, or respond 404 if the version or the name is unknown."""
        if (version, name) not in _ASSETS:
            raise HTTPError(404)
        kind = _CONTENT_TYPES.get(Path(name).suffix, "text/javascript; charset=utf-8")
        self.set_header("Content-Type", kind)
        self.set_header("Cache-Control", f"max-age={YEAR_S}, immutable")
        self.finish(_ASSETS[version, name])


# Added to all servers of this process, like Panel's own routes, so that widgets also work outside the designer.
toplevel_patterns.insert(0, (r"/assets/(\w+)/([\w/.-]+)", Assets))
ReactiveESM.__javascript_raw__ = [_module_url(_NATIVE_IMPORT)]
