"""URLs of HTTP servers: checked where they are given, and shown without what may be secret in them."""

from __future__ import annotations

from yarl import URL

from jaz_actors.errors import ConfigurationError


def parsed(name: str, url: str) -> URL:
    """Raises ConfigurationError, naming the argument, for what is no URL of an HTTP server."""
    try:
        found = URL(url)
    except (ValueError, TypeError) as error:
        raise ConfigurationError(name, f"is no URL: {error}") from error
    if found.scheme not in ("http", "https") or not found.host:
        raise ConfigurationError(name, f"{shown(found)!r} does not begin with http://HOST or https://HOST")
    return found


def shown(url: URL) -> str:
    """Without user, password and query, which may be secret."""
    return str((url.with_user(None) if url.absolute else url).with_query(None).with_fragment(None))
