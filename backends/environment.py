"""What backends take from the process's environment: keys and proxies. Knows no server.

It is read when a backend makes its first call, in that process.
"""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass, field
from urllib.request import getproxies, proxy_bypass

from jaz_actors.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key given outright, which is pickled with its backend; or the variable to read it from, which is not.

    Its repr shows no key.
    """

    given: str | None = field(default=None, repr=False)
    variable: str | None = None

    def __post_init__(self) -> None:
        _check("api_key", self.given)

    def read(self) -> str | None:
        """The key to send; None where there is none."""
        if self.given is not None or self.variable is None:
            return self.given
        value = os.environ.get(self.variable, "").strip() or None
        _check(self.variable, value)
        return value


def _check(name: str, key: str | None) -> None:
    """A key with other characters would be quoted in the error of whatever fails to send it."""
    if key is not None and not (key.isascii() and key.isprintable() and key and " " not in key):
        raise ConfigurationError(name, "is empty or has blanks or characters that no HTTP header can carry")


def proxy_for(scheme: str, host: str) -> str | None:
    """The proxy that the usual variables name for a server; never one for this machine itself."""
    if _is_loopback(host) or proxy_bypass(host):
        return None
    proxies = getproxies()
    proxy = proxies.get(scheme) or proxies.get("all")
    return proxy if proxy is None or "://" in proxy else f"http://{proxy}"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
