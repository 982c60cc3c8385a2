"""Keys and proxies from the environment."""

from __future__ import annotations

import pytest

from jaz_actors.backends.environment import ApiKey, proxy_for
from jaz_actors.errors import ConfigurationError


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def test_the_usual_variables_name_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    assert proxy_for("https", "api.example.com") is None
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    monkeypatch.setenv("ALL_PROXY", "other:1")
    monkeypatch.setenv("NO_PROXY", "inside.example.com")
    assert proxy_for("https", "api.example.com") == "http://proxy:3128"
    assert proxy_for("http", "api.example.com") == "http://other:1"
    assert proxy_for("https", "inside.example.com") is None


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.1.2.3", "::1"])
def test_this_machine_is_never_behind_a_proxy(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://proxy:3128")
    assert proxy_for("http", host) is None


@pytest.mark.parametrize("key", ["", "with blank", "line\nbreak", "nön-ascii"])
def test_a_key_that_no_header_can_carry_is_refused_unseen(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        ApiKey(key)
    assert not key or key not in str(caught.value)


def test_a_variable_is_read_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    key = ApiKey(variable="SOME_KEY")
    monkeypatch.delenv("SOME_KEY", raising=False)
    assert key.read() is None
    monkeypatch.setenv("SOME_KEY", "  sk-1\n")
    assert key.read() == "sk-1"
    assert ApiKey("sk-2", "SOME_KEY").read() == "sk-2"
    assert "sk-" not in repr(ApiKey("sk-2", "SOME_KEY"))
