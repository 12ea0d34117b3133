"""The address under which browsers open the designer: its own, or that of a reverse proxy in front of it."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from meshwave.engine.findings import Refusal

ADDRESS = "127.0.0.1"
DEFAULT_PORTS = {"http": 80, "https": 443}
"""Ports that browsers leave out of the headers ``Host`` and ``Origin``."""


class Site(NamedTuple):
    """Public address such as ``hub.example.org/proxy/5006``; a proxy removes the path from the requests."""

    origin: str
    """Scheme, host and port."""
    root: str
    """Path prefix of all pages of the server, such as ``/proxy/5006``; empty for none."""

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
    """TLS certificate, required for addresses other than loopback addresses."""
    key: Path | None = None
    """The key of the certificate."""
    proxy: Site | None = None
    """The address under which a reverse proxy serves the pages; None without one."""

    @property
    def site(self) -> Site:
        """The address that browsers open."""
        return self.proxy or self.direct_site(self.address)

    def direct_site(self, host: str) -> Site:
        """Return the address of the server without the proxy, at a given host name."""
        return site_of_address("https" if self.certificate else "http", host, self.port)

    @property
    def origin(self) -> str:
        """Address of the page as text, without a slash at its end."""
        return f"{self.site.origin}{self.site.root}"


def parse_site(url: str) -> Site:
    """Return the site of a URL.

    Raises:
        Refusal: the URL is invalid, its host is an IPv6 address, or it uses http and its host is not a loopback address.
    """
    try:
        parts = urlsplit(url)
        is_site = parts.scheme in ("http", "https") and parts.hostname and not (parts.query or parts.fragment)
        port = parts.port
    except ValueError:
        is_site = False
    if not is_site or "@" in parts.netloc:
        raise Refusal("not_a_site", {"url": url})
    host = parts.hostname or ""
    if ":" in host:
        raise Refusal("address_without_name", {"address": host})
    if parts.scheme == "http" and not is_loopback(host):
        raise Refusal("site_without_tls", {"url": url})
    return site_of_address(parts.scheme, host, port, parts.path.rstrip("/"))


def site_of_address(scheme: str, host: str, port: int | None, root: str = "") -> Site:
    """Return the site of an address in the form of the header ``Origin``, which leaves out a default port."""
    shown_port = "" if port in (None, DEFAULT_PORTS[scheme]) else f":{port}"
    return Site(f"{scheme}://{host}{shown_port}", root)


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
    if not is_loopback(place.address) and not place.site.is_encrypted:
        raise Refusal("unencrypted_address", {"address": place.address})
    if place.proxy is None and not can_be_opened(place.address):
        raise Refusal("address_without_name", {"address": place.address})


def can_be_opened(address: str) -> bool:
    """Return whether pages can be opened at an address.

    Browsers cannot open an address that stands for all addresses of this machine, and Panel builds no pages for IPv6
    addresses in URLs.
    """
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return bool(address)
    return parsed.version == 4 and not parsed.is_unspecified


def is_loopback(address: str) -> bool:
    """Return whether only this machine can reach an address."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"
