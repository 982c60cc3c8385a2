"""Libraries: names, access, copies, and the catalog that an agent is shown."""

from __future__ import annotations

import copy
import inspect
import os
import re
import threading
from functools import partial
from typing import Any

import cloudpickle
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaz_actors.errors import ConfigurationError
from jaz_actors.library import MAX_CHARACTERS, MAX_LINE, MAX_OBJECTS, Library
from jaz_actors.refs import Reference, describe_object
from jaz_actors.render import value_text


def read(path, start=1):  # type: ignore[no-untyped-def]
    """Read a file.

    All of it.
    """
    return f"{path} from {start}"


async def fetch(url):  # type: ignore[no-untyped-def]
    """Fetch a page."""


class Client:
    """Talks to the server."""

    def __init__(self, url):  # type: ignore[no-untyped-def]
        self.url = url


def library() -> Library:
    return Library("tools", "What is needed.", fetch=fetch, files=Library("files", "About files.", read=read), limit=3)


def test_members_are_attributes_at_every_level() -> None:
    tools = library()
    tools.add("web.pages.get", fetch)
    assert tools.files.read("a", start=2) == "a from 2"
    assert tools.limit == 3
    assert tools.web.pages.get is fetch
    assert {"fetch", "files", "limit", "web", "add", "catalog", "members"} <= set(dir(tools))
    assert "read" in dir(tools.files)


def test_members_are_read_only() -> None:
    tools = library()
    assert list(tools.members()) == ["fetch", "files", "limit"]
    with pytest.raises(TypeError):
        tools.members()["new"] = read  # type: ignore[index]
    with pytest.raises(AttributeError):
        tools.new = read  # type: ignore[attr-defined]  # it would be in no catalog


def test_a_missing_member_is_an_attribute_error_that_knows_what_was_asked() -> None:
    tools = library()
    with pytest.raises(AttributeError, match="files has no member 'raed'") as caught:
        tools.files.raed("a")
    assert (caught.value.name, caught.value.obj) == ("raed", tools.files)


@pytest.mark.parametrize("copied", [lambda tools: cloudpickle.loads(cloudpickle.dumps(tools)), copy.deepcopy])
def test_a_copy_is_a_library_with_the_same_members(copied: Any) -> None:
    tools = library()
    tools.add("math.double", lambda x: 2 * x)
    other = copied(tools)
    assert type(other) is Library
    assert str(other) == str(tools)
    assert other.math.double(4) == 8
    other.add("extra", read)
    assert "extra" not in dir(tools)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("_hidden", "underscore"),
        ("__reduce__", "underscore"),
        ("class", "identifier"),
        ("a-b", "identifier"),
        ("", "identifier"),
        ("files..read", "identifier"),
        ("files._read", "underscore"),
        ("add", "method"),
        ("catalog", "method"),
        ("new.members", "method"),
        ("fetch", "taken"),
        ("files.read", "taken"),
        ("fetch.more", "no library"),
    ],
)
def test_a_name_that_cannot_be_reached_is_refused_and_nothing_is_added(name: str, reason: str) -> None:
    tools = library()
    before = str(tools)
    with pytest.raises(ConfigurationError, match=reason) as caught:
        tools.add(name, read)
    assert caught.value.subject == f"tools.{name}"
    assert str(tools) == before


def test_names_are_checked_at_construction() -> None:
    with pytest.raises(ConfigurationError, match=r"tools\._read"):
        Library("tools", _read=read)
    with pytest.raises(ConfigurationError, match="my tools"):
        Library("my tools")
    assert Library("tools", name=read, doc=read, self=read).doc is read


def test_a_library_within_itself_is_refused() -> None:
    tools = library()
    inner = tools.files
    for path, member in (("me", tools), ("files.up", tools), ("files.new.up", tools), ("files.me", inner)):
        with pytest.raises(ConfigurationError, match="within itself") as caught:
            tools.add(path, member)
        assert caught.value.subject == f"tools.{path}"
    assert str(tools) == str(library())


def test_a_library_may_be_in_several_places_however_often_that_doubles_its_paths() -> None:
    tools = Library("tools", read=read)
    for _ in range(60):
        tools = Library("tools", left=tools, right=tools)
    assert f"{2**60 + 2 * (2**60 - 1) - MAX_OBJECTS:,} of" in str(tools)
    tools.add("more", read)


def test_the_catalog_has_a_line_for_each_object() -> None:
    tools = library()
    tools.add("Client", Client)
    tools.add("twice", partial(read, start=2))
    tools.add("client", Client("x"))  # type: ignore[no-untyped-call]
    tools.add("files.read_all", len)
    assert str(tools).splitlines() == [
        "What is needed.",
        "async tools.fetch(url)  # Fetch a page.",
        "tools.files: library of 2  # About files.",
        "tools.limit: int",
        "class tools.Client(url)  # Talks to the server.",
        "tools.twice(path, *, start=2)  # Read a file.",
        "tools.client: Client",
        "tools.files.read(path, start=1)  # Read a file.",
        f"tools.files.read_all{inspect.signature(len)}  # Return the number of items in a container.",
        "[help(tools.fetch) shows all of its documentation]",
    ]


def test_an_agent_is_shown_the_catalog() -> None:
    assert value_text(library()) == str(library())


def test_a_prefix_lists_what_is_below_it() -> None:
    tools = library()
    assert tools.catalog("files").splitlines() == [
        "About files.",
        "tools.files.read(path, start=1)  # Read a file.",
        "[help(tools.files.read) shows all of its documentation]",
    ]
    assert tools.catalog("files.read") == "tools.files.read(path, start=1)  # Read a file."
    with pytest.raises(AttributeError, match="no member 'nowhere'"):
        tools.catalog("files.nowhere")


def test_a_tool_by_reference_is_shown_as_it_is_at_home() -> None:
    tools = library()
    tools.add("remote", Reference(describe_object(read, "home", 0)))
    tools.add("remote_fetch", Reference(describe_object(fetch, "home", 1)))
    tools.add("lock", Reference(describe_object(threading.Lock(), "home", 2)))
    assert "\ntools.remote(path, start=1)  # Read a file." in str(tools)
    assert "\nasync tools.remote_fetch(url)  # Fetch a page." in str(tools)
    assert "\ntools.lock: _thread.lock" in str(tools)


class Touchy:
    """Fails when any of its own code runs."""

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        raise AssertionError("asked for its class")

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"asked for {name}")

    def __repr__(self) -> str:
        raise AssertionError("asked for its repr")


class Unreadable:
    """A callable whose signature, docstring and repr raise what nobody expects."""

    @property
    def __signature__(self) -> inspect.Signature:
        raise ZeroDivisionError

    @property
    def __doc__(self) -> str:  # type: ignore[override]
        raise ZeroDivisionError

    def __call__(self) -> None: ...


def test_a_listing_runs_no_code_of_members_and_survives_their_signatures() -> None:
    def odd(value=Touchy()):  # type: ignore[no-untyped-def]  # noqa: B008
        """Has a default without a repr."""

    tools = Library("tools", touchy=Touchy(), unreadable=Unreadable(), odd=odd, builtin=max)
    lines = str(tools).splitlines()
    assert lines[0] == "tools.touchy: Touchy"
    assert lines[1] == "tools.unreadable(...)"
    assert lines[2] == "tools.odd(...)  # Has a default without a repr."
    assert lines[3].startswith("tools.builtin(...)  # ")


def _documented(doc: str, default: str) -> Any:
    def tool(value=default):  # type: ignore[no-untyped-def]
        pass

    tool.__doc__ = doc
    return tool


NAMES = st.from_regex(r"x[a-z]{0,3}", fullmatch=True) | st.sampled_from(["y" * 150, "z" * 400])
DOCS = st.text(max_size=20) | st.integers(0, 500).map(lambda n: "word " * n) | st.just("line\n" * 100)
TOOLS = st.builds(_documented, DOCS, st.text(max_size=5) | st.integers(0, 500).map("v".__mul__)) | st.integers()


@st.composite
def libraries(draw: st.DrawFn, depth: int = 3) -> Library:
    size = draw(st.sampled_from([0, 1, 3, 60, 150]) if depth == 3 else st.integers(0, 3))
    members = draw(st.dictionaries(NAMES, TOOLS if depth == 0 else TOOLS | libraries(depth - 1), max_size=4))
    tool = draw(TOOLS)
    return Library("tools", draw(DOCS), **members, **{f"w{i}": tool for i in range(size)})


def _paths(path: str, tools: Library) -> set[str]:
    found = {f"{path}.{name}" for name in tools.members()}
    return found.union(*(_paths(f"{path}.{n}", m) for n, m in tools.members().items() if isinstance(m, Library)))


@given(libraries())
def test_every_page_is_bounded_and_the_pages_hold_every_object_once(tools: Library) -> None:
    total, start, lines = len(_paths("tools", tools)), 0, 0
    while True:
        page = tools.catalog(start=start)
        listed = [line for line in page.splitlines() if re.match(r"tools\.", line)]
        assert len(page) <= MAX_CHARACTERS
        assert max(map(len, page.splitlines()), default=0) <= MAX_LINE
        assert len(listed) <= MAX_OBJECTS
        lines += len(listed)
        more = re.search(r"\[([\d,]+) of ([\d,]+) objects left out: print\(tools\.catalog\(start=(\d+)\)\)", page)
        if more is None:
            break
        start = int(more[3])
        assert start == lines
        assert (int(more[1]), int(more[2])) == (total - start, total)
    assert lines == total


def test_a_cut_catalog_says_how_to_see_the_rest() -> None:
    tools = Library("tools", **{f"tool{i}": read for i in range(90)})
    for i in range(20):
        tools.add(f"files.tool{i}", read)
    assert str(tools).splitlines()[-1] == (
        "[11 of 111 objects left out: print(tools.catalog(start=100)) goes on; "
        'print(tools.catalog("files")) lists one library; help(tools.tool0) shows all of its documentation]'
    )
    tools.add("deep.er", Library("er", **{f"t{i}": os.getcwd for i in range(101)}))
    assert 'print(tools.catalog("deep.er", start=100)) goes on' in tools.catalog("deep.er")
    assert tools.catalog("deep.er", start=100).splitlines()[0].startswith("tools.deep.er.t100()")
