"""Addresses of the designer behind a reverse proxy."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from meshwave.designer.server.serve import find_free_port
from meshwave.designer.server.site import Place, Site, parse_site
from meshwave.engine.findings import Refusal


@pytest.mark.parametrize(
    ("url", "site", "host"),
    [
        ("https://hub.example.org/user/ada/proxy/5006/", Site("https://hub.example.org", "/user/ada/proxy/5006"), ""),
        ("https://Hub.example.org:8443", Site("https://hub.example.org:8443", ""), "hub.example.org:8443"),
        ("http://127.0.0.1:8000/x", Site("http://127.0.0.1:8000", "/x"), "127.0.0.1:8000"),
        ("https://hub.example.org:443/", Site("https://hub.example.org", ""), ""),
    ],
)
def test_a_site_has_an_origin_and_a_path(url: str, site: Site, host: str) -> None:
    assert parse_site(url) == site
    assert site.host == (host or "hub.example.org")
    assert site.is_encrypted == url.startswith("https")


def test_a_port_of_an_ipv6_address_can_be_free_or_in_use() -> None:
    port = find_free_port(None, "::1")
    with socket.create_server(("::1", port), family=socket.AF_INET6), pytest.raises(Refusal) as refusal:
        find_free_port(port, "::1")
    assert refusal.value.problem.code == "unusable_port"


def test_the_default_port_is_left_out_as_browsers_do() -> None:
    assert Place("hub.example.org", 443, certificate=Path("cert.pem")).origin == "https://hub.example.org"


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("hub.example.org/x", "not_a_site"),
        ("ftp://hub.example.org/x", "not_a_site"),
        ("https:///x", "not_a_site"),
        ("https://hub.example.org:port/", "not_a_site"),
        ("https://user@hub.example.org/", "not_a_site"),
        ("https://hub.example.org/?token=1", "not_a_site"),
        ("https://[::1/", "not_a_site"),
        ("https://[::1]/", "address_without_name"),
        ("http://hub.example.org/", "site_without_tls"),
    ],
)
def test_other_addresses_are_refused(url: str, code: str) -> None:
    with pytest.raises(Refusal) as refusal:
        parse_site(url)
    assert refusal.value.problem.code == code
