"""The address under which browsers open the designer: its own, or that of a reverse proxy in front of it."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from meshwave.engine.findings import Refusal

ADDRESS = "127.0.0.1"


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


class Place(NamedTuple):
    """Address and port at which a server listens, and the address at which browsers open it."""

    address: str = ADDRESS
    port: int | None = None
    """The port; None for the first free one from 5006 on."""
    certificate: Path | None = None
    """The TLS certificate, which other addresses than the loopback need."""
    key: Path | None = None
    """The key of the certificate."""
    proxy: Site | None = None
    """The address under which a reverse proxy serves the pages; None without one."""

    @property
    def site(self) -> Site:
        """The address that browsers open."""
        scheme = "https" if self.certificate else "http"
        return self.proxy or Site(f"{scheme}://{self.address}:{self.port}", "")

    @property
    def origin(self) -> str:
        """The same as text, without a slash at its end."""
        return f"{self.site.origin}{self.site.root}"


def parse_site(url: str) -> Site:
    """Return the site of a URL.

    Raises:
        Refusal: the URL is invalid, or it uses http and its host is not a loopback address.
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


def check_encryption(place: Place) -> None:
    """Refuse to serve other machines without TLS, which would show the keys of all people on the network.

    Raises:
        Refusal: TLS is missing, the files of the certificate cannot be read, or browsers cannot open the address.
    """
    for path in filter(None, (place.certificate, place.key)):
        if not path.is_file():
            raise Refusal("unreadable_certificate", {"path": str(path)})
    if (place.certificate is None) != (place.key is None):
        raise Refusal("certificate_without_key")
    if is_loopback(place.address):
        return
    if not place.site.is_encrypted:
        raise Refusal("unencrypted_address", {"address": place.address})
    if place.proxy is None and is_wildcard(place.address):
        raise Refusal("address_without_name", {"address": place.address})


def is_wildcard(address: str) -> bool:
    """Return whether an address stands for all addresses of this machine."""
    try:
        return ipaddress.ip_address(address).is_unspecified
    except ValueError:
        return not address


def is_loopback(address: str) -> bool:
    """Return whether only this machine can reach an address."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"
