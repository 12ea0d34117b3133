"""The address under which browsers open the designer: its own, or that of a reverse proxy in front of it."""

from __future__ import annotations

import ipaddress
from typing import NamedTuple
from urllib.parse import urlsplit

from meshwave.engine.findings import Refusal


class Site(NamedTuple):
    """Public address such as ``hub.example.org/proxy/5006``; a proxy removes the path from the requests."""

    origin: str
    """Scheme, host and port."""
    root: str
    """Path in front of the paths of the server, such as ``/proxy/5006``; empty for none."""

    @property
    def host(self) -> str:
        """Host and port as in the header ``Host``."""
        return self.origin.partition("://")[2]

    @property
    def is_encrypted(self) -> bool:
        """True if browsers use TLS."""
        return self.origin.startswith("https:")


def parse_site(url: str) -> Site:
    """Return the site of a URL.

    Raises:
        Refusal: the URL is invalid, or other machines would use it without TLS.
    """
    try:
        parts = urlsplit(url)
        is_site = parts.scheme in ("http", "https") and parts.hostname and not (parts.query or parts.fragment)
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        is_site = False
    if not is_site or "@" in parts.netloc:
        raise Refusal("not_a_site", {"url": url})
    host = parts.hostname or ""
    if parts.scheme == "http" and not is_loopback(host):
        raise Refusal("site_without_tls", {"url": url})
    shown = f"[{host}]" if ":" in host else host
    return Site(f"{parts.scheme}://{shown}{port}", parts.path.rstrip("/"))


def is_loopback(address: str) -> bool:
    """Return whether only this machine can reach an address."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"
