"""The page: one file that holds its style, its program and its data. Knows no event."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable
from importlib import resources

import msgspec

from jaz_actors.events import Event
from jaz_actors.recorders.html.data import TextTable, page_data

# What could end the element that holds the data, or a line of a program.
_ESCAPES = {"<": "\\u003c", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def page(events: Iterable[Event]) -> str:
    """One self-contained HTML file of the invocations in `events`, each one's events in order; nothing is fetched.

    The same for every interleaving of the invocations.
    """
    shown = page_data(events)
    table = TextTable()
    data = msgspec.json.encode(shown, enc_hook=table.number)
    style = _file("page.css")
    script = _file("model.js") + _file("view.js")
    parts = {
        "count": str(len(shown.invocations)),
        "style": style,
        "style_hash": _hash(style),
        "data": embeddable(data),
        "texts": embeddable(msgspec.json.encode(table.texts)),
        "script": script,
        "script_hash": _hash(script),
    }
    # In one pass, so that no part is searched for the names of others.
    return re.sub(r"\{\{(\w+)\}\}", lambda place: parts[place[1]], _file("page.html"))


def embeddable(json: bytes) -> str:
    """The same JSON, safe in a script element."""
    return re.sub("[<\u2028\u2029]", lambda found: _ESCAPES[found[0]], json.decode())


def _file(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text("utf-8")


def _hash(text: str) -> str:
    """As a content security policy names what it allows."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
