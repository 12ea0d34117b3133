"""Sign-in with the OAuth or OpenID Connect provider of a deployment, by Panel's modules."""

from __future__ import annotations

from html import escape
from typing import Any

import panel as pn
from panel.auth import AUTH_PROVIDERS, CODE_COOKIE_NAME, STATE_COOKIE_NAME, OAuthLoginHandler, PasswordLoginHandler
from panel.util import decode_token
from tornado.web import HTTPError, RequestHandler

from meshwave.designer.server.access_pages import short_page
from meshwave.engine.findings import Refusal, unknown_member_params
from meshwave.engine.people.people_file import OAuth

PROVIDER_FAILED = "the provider cannot be reached, or its answer is not valid"


def oauth_sign_in(settings: OAuth) -> type[RequestHandler]:
    """Configure one of Panel's providers and return the request handler of ``/sign-in``.

    Raises:
        Refusal: Panel has no such provider.
    """
    known = {
        name: handler
        for name, handler in AUTH_PROVIDERS.items()
        if issubclass(handler, OAuthLoginHandler) and not issubclass(handler, PasswordLoginHandler)
    }
    if settings.provider not in known:
        raise Refusal("unknown_member", unknown_member_params("OAuth provider", settings.provider, known))
    options = {"oauth_key": settings.key, "oauth_jwt_user": settings.user_key, "oauth_extra_params": settings.options}
    for name, value in options.items():
        setattr(pn.config, name, value)  # typed as a property without a setter
    return type("OAuthSignIn", (OAuthSignIn, known[settings.provider]), {})


class OAuthSignIn(OAuthLoginHandler):
    """Request handler that sends people to the provider, and signs them in when they return."""

    _login_endpoint = "/sign-in"
    is_unverified = False

    @property
    def access(self) -> Any:
        """The access control of the server."""
        return self.application.auth_provider  # type: ignore[attr-defined]  # Bokeh's application has one

    def prepare(self) -> None:
        """Refuse requests that name another server."""
        if not self.access.is_known_host(self):
            raise HTTPError(403)

    @property
    def _redirect_uri(self) -> str:
        """The address to which the provider sends people back."""
        return f"{self.access.place.origin}{self._login_endpoint}"

    async def get_authenticated_user(self, *arguments: Any, **options: Any) -> Any:
        """Send the browser to the provider or, when it has returned with a code, sign in the person."""
        name = await super().get_authenticated_user(*arguments, **options)  # type: ignore[no-untyped-call]
        if name is None:  # the browser is sent to the provider
            return None
        try:
            if self.is_unverified:
                raise Refusal("unverified_email", {"name": name})
            self.access.sign_in_by_provider(self, name)
        except Refusal as refusal:
            raise HTTPError(403, str(refusal)) from None
        return name

    def set_secure_cookie(self, name: str, value: str | bytes, *arguments: Any, **options: Any) -> None:
        """Set the cookies that connect the two halves of a sign-in; Panel also sets the tokens of the provider."""
        if name in (STATE_COOKIE_NAME, CODE_COOKIE_NAME):
            options |= {"samesite": "Lax", "secure": self.access.site.is_encrypted}
            super().set_secure_cookie(name, value, *arguments, **options)
        elif name == "id_token":
            verified = decode_token(str(value)).get("email_verified", True)
            self.is_unverified = str(verified).lower() == "false"

    def redirect(self, url: str, *arguments: Any, **options: Any) -> None:
        """Redirect to the provider, or to a page of this server below the root of the site."""
        super().redirect(f"{self.access.site.root}{url}" if url.startswith("/") else url, *arguments, **options)

    def write_error(self, status_code: int, **options: Any) -> None:
        """Show the reason for a refusal."""
        error = options["exc_info"][1]
        reason = error.log_message if isinstance(error, HTTPError) else None
        root = self.access.site.root
        link = f"<a href='{root}{self._login_endpoint}'>Try again</a>"
        self.finish(short_page(f"You are not signed in: {escape(reason or PROVIDER_FAILED)}. {link}", root))
