"""Pages for people who are not admitted: reasons, and forms to sign in."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from html import escape
from typing import Any, ClassVar
from urllib.parse import parse_qsl, urlencode, urlsplit

from tornado.web import RequestHandler

from meshwave.designer.kit.assets import TRANSLATION
from meshwave.engine.errors import MeshwaveError

PAGES = ("/", "/start", "/transfer", "/admin", "/board")
"""Paths of the pages to which a browser returns after signing in."""
REFUSED = "Open the link that Meshwave printed at its last start; it contains the access token of this page."
KEPT = "It opens your design again."
CROSS_SITE = (
    "You followed a link from another site. If this is your Meshwave, <a id='on' href='.{path}'>open it here</a>."
    "<script>document.getElementById('on').hash = location.hash</script>"
)
"""Text for a link on another site, after which a browser does not send a strict cookie.

The script keeps the fragment of the link, which may contain a design.
"""
STYLE = "font: 16px system-ui; margin: 3em"


def short_page(text: str, root: str) -> str:
    """Return a page with a paragraph of HTML, whose icon is below the path ``root``."""
    head = f"<title>Meshwave</title><link rel='icon' href='{root}/favicon.ico'>"
    return f"<!doctype html><html lang='en'>{head}<p style='{STYLE}'>{text}</p>"


class AccessPage(RequestHandler):
    """Base class of request handlers of pages that need no authentication."""

    @property
    def access(self) -> Any:
        """The access control of the server."""
        return self.application.auth_provider  # type: ignore[attr-defined]  # Bokeh's application has one

    @property
    def next_page(self) -> str:
        """The page of this server that the browser asked for; ``/`` if it is not a page."""
        _, _, path, query, _ = urlsplit(self.get_query_argument("next", "/"))
        if path not in PAGES:
            return "/"
        return f"{path}?{urlencode(parse_qsl(query))}" if query else path


class RefusedPage(AccessPage):
    """Request handler of the page for requests without the token, or of people without the required role."""

    def get(self) -> None:
        """Explain how to open the designer, with a link if the request came from another site.

        A browser that was admitted since then, for example in another tab, returns to the page.
        """
        user = self.access.identify(self)
        if user is not None and not user.name:
            self.redirect(f"{self.access.site.root}{self.next_page}")
            return
        self.set_status(403)
        is_from_elsewhere = self.request.headers.get("Sec-Fetch-Site") == "cross-site"
        is_cross_site = is_from_elsewhere and urlsplit(self.get_argument("next", "")).path in PAGES
        is_kept = user is None and not is_from_elsewhere and self.access.keep_draft(self, self.next_page)
        if user is not None and user.name:
            text = f"You are signed in as {escape(user.name)} with the role {user.role}, which does not allow opening this page."
            if self.access.name_to_sign_out(user):
                text += f" <a href='{self.access.site.root}/sign-out'>Sign out</a>"
        elif is_cross_site:
            text = f"{CROSS_SITE.format(path=escape(self.next_page))}</p><p style='{STYLE}'>Otherwise: {REFUSED}"
        else:
            text = f"{REFUSED} {KEPT}" if is_kept else REFUSED
        self.write(short_page(text, self.access.site.root))


class SignOut(AccessPage):
    """Request handler of the page that signs a browser out."""

    def get(self) -> None:
        """Sign the browser out and confirm it, unless another site sent it here."""
        if not self.access.is_known_host(self) or self.request.headers.get("Sec-Fetch-Site") == "cross-site":
            self.send_error(403)
            return
        self.access.sign_out(self)
        root = self.access.site.root
        text = f"You are signed out. <a href='{root}{self.access.entrance}'>Sign in again</a>"
        self.write(short_page(text, root))


FORM = """<!doctype html><html lang="en"><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1"><title>{title}</title>
<link rel="icon" href="{root}/favicon.ico">{translation}
<style>
  :root {{ color-scheme: light dark; font: 16px Roboto, system-ui, sans-serif; }}
  body {{ margin: 0; background: light-dark(#edeff3, #0e0f13); color: light-dark(#1b1d23, #e8eaf0); }}
  form {{
    display: grid; gap: 1em; box-sizing: border-box; width: min(25em, 100% - 24px); margin: 10vh auto; padding: 1.5em;
    border: 1px solid light-dark(#dde0e7, #2c2f38); border-radius: 10px; background: light-dark(#fff, #16181d);
  }}
  h1 {{ margin: 0; font-size: 1.4em; }}
  input, button {{
    box-sizing: border-box; width: 100%; min-height: 44px; margin-top: 4px; padding: 0.4em 0.6em;
    border: 1px solid light-dark(#868d9b, #767d8b); border-radius: 6px; background: transparent; color: inherit; font: inherit;
  }}
  button {{ border: 0; background: light-dark(#3d4cc7, #939dff); color: light-dark(#fff, #10121a); font-weight: 600; }}
  :focus-visible {{ outline: 2px solid light-dark(#3d4cc7, #939dff); outline-offset: 2px; }}
  input[name=code] {{ letter-spacing: 0.2em; text-transform: uppercase; }}
  [role=alert] {{ color: light-dark(#b3261e, #ffb4ab); }}
</style>
<form method="post"><h1 translate="{translate}">{heading}</h1>
{fields}
<div role="alert">{refusal}</div><button>{button}</button></form></html>"""


class AccessForm(AccessPage, ABC):
    """Request handler of a form with which people sign in."""

    title = button = ""
    fields: ClassVar[Mapping[str, tuple[str, str]]] = {}
    """Label and HTML attributes of the input of each value, by name."""
    has_named_heading = False
    """True if the heading is a name that people chose, which is not translated."""
    kept: ClassVar[tuple[str, ...]] = ()
    """Names of the values that the form keeps after a refusal."""

    @property
    def heading(self) -> str:
        """The heading of the form."""
        return self.title

    @abstractmethod
    def admit(self, values: Mapping[str, str]) -> None:
        """Admit the browser.

        Raises:
            Refusal: the values are wrong.
        """

    def get(self) -> None:
        """Show the form."""
        if not self.access.is_known_host(self):
            self.send_error(403)
            return
        self._send_form("", {name: self.get_query_argument(name, "") for name in self.kept})

    def post(self) -> None:
        """Admit the browser, or show the reason for a refusal."""
        values = {name: self.get_body_argument(name, "") for name in self.fields}
        if not self.access.is_known_host(self) or not self._is_own_form:
            self.send_error(403)
            return
        try:
            self.admit(values)
        except MeshwaveError as error:
            self.set_status(403)
            self._send_form(str(error), {name: values[name] for name in self.kept})
            return
        self.redirect(f"{self.access.site.root}{self.next_page}")

    @property
    def _is_own_form(self) -> bool:
        """True unless a page of another site sent the form; older browsers do not name the sender."""
        return self.request.headers.get("Sec-Fetch-Site", "same-origin") == "same-origin"

    def _send_form(self, refusal: str, values: Mapping[str, str]) -> None:
        fields = [
            f"<label>{escape(label)}<input name='{name}' value='{escape(values.get(name, '')[:100])}' {attributes}></label>"
            for name, (label, attributes) in self.fields.items()
        ]
        root = self.access.site.root
        shown = {"title": self.title, "root": root, "heading": self.heading, "refusal": refusal, "button": self.button}
        shown["translate"] = "no" if self.has_named_heading else "yes"
        self.write(
            FORM.format(
                translation=TRANSLATION, fields="\n".join(fields), **{key: escape(text) for key, text in shown.items()}
            )
        )
