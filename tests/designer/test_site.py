"""Addresses of the designer behind a reverse proxy."""

from __future__ import annotations

import pytest

from meshwave.designer.server.site import Site, parse_site
from meshwave.engine.findings import Refusal


@pytest.mark.parametrize(
    ("url", "site", "host"),
    [
        ("https://hub.example.org/user/ada/proxy/5006/", Site("https://hub.example.org", "/user/ada/proxy/5006"), ""),
        ("https://Hub.example.org:8443", Site("https://hub.example.org:8443", ""), "hub.example.org:8443"),
        ("http://127.0.0.1:8000/x", Site("http://127.0.0.1:8000", "/x"), "127.0.0.1:8000"),
        ("http://[::1]:8000/", Site("http://[::1]:8000", ""), "[::1]:8000"),
    ],
)
def test_a_site_has_an_origin_and_a_path(url: str, site: Site, host: str) -> None:
    assert parse_site(url) == site
    assert site.host == (host or "hub.example.org")
    assert site.is_encrypted == url.startswith("https")


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
        ("http://hub.example.org/", "site_without_tls"),
    ],
)
def test_other_addresses_are_refused(url: str, code: str) -> None:
    with pytest.raises(Refusal) as refusal:
        parse_site(url)
    assert refusal.value.problem.code == code
