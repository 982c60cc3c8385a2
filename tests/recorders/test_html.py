"""The HTML page: what its data holds, that nothing breaks out of it, and that it works in a browser."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterator
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from jaz_actors import ConfigOverride, Hook, Scripted, ainvoke, configure, shutdown
from jaz_actors.effects import AddMessages, DropMessages, InsertCode, ModifyLLMResponse, NewMessage
from jaz_actors.events import (
    Event,
    InvokeExit,
    LLMQueryComplete,
    LLMQueryEnter,
    LLMQuerySend,
    MessageDrop,
    REPLExecExit,
)
from jaz_actors.messages import Completion
from jaz_actors.recorders.html import page
from tests.recorders.synthetic import RUN, SYSTEM, interleaved, invocation, run_of

NODE = shutil.which("node")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)


class Parts(HTMLParser):
    """The elements of a page: their names, and the text of each script and style."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.scripts: list[str] = []
        self._in: str | None = None
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        self._in = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._in = None

    def handle_data(self, data: str) -> None:
        if self._in == "script":
            self.scripts[-1] += data

    @property
    def data(self) -> dict[str, Any]:
        loaded: dict[str, Any] = json.loads(self.scripts[0])
        return loaded

    @property
    def texts(self) -> list[str]:
        loaded: list[str] = json.loads(self.scripts[1])
        return loaded


def shown(parts: Parts) -> dict[str, Any]:
    """The invocations by path."""
    return {item["id"].partition(":")[2]: item for item in parts.data["invocations"]}


# -- what the data holds


def test_the_page_is_the_same_for_every_interleaving() -> None:
    streams = [invocation(path, tokens=True) for path in ("0", "0.0", "0.10", "0.2", "0.doc", "1")]
    whole = page(event for stream in streams for event in stream)
    assert list(shown(Parts(whole))) == ["0", "0.0", "0.2", "0.10", "0.doc", "1"]
    assert {page(interleaved(streams, seed)) for seed in range(5)} == {whole}


@pytest.mark.parametrize("length", range(len(invocation("0", retries=1))))
def test_a_page_of_an_invocation_that_stops_anywhere(length: int) -> None:
    events = invocation("0", retries=1)[: length + 1]
    (item,) = Parts(page(events)).data["invocations"]
    ended = isinstance(events[-1], InvokeExit)
    assert item.get("outcome", {"status": "unfinished"})["status"] == ("completed" if ended else "unfinished")
    assert ("end" in item) is ended
    assert item["last"] == round((events[-1].timestamp - events[0].timestamp) * 1e6)


def test_no_events_are_a_page_too() -> None:
    assert Parts(page([])).data["invocations"] == []


def test_messages_are_stored_once_and_texts_that_siblings_share_too() -> None:
    text = page(event for path in ("0", "1", "2") for event in invocation(path, turns=30))
    assert text.count(SYSTEM) == 1
    assert text.count("hello 17 1") == 1


def test_size_is_linear_in_turns() -> None:
    fixed = len(page([]))
    short, long = (len(page(invocation("0", turns=turns, tokens=True))) - fixed for turns in (100, 400))
    assert long < 4.5 * short


def test_size_is_linear_in_turns_that_a_window_shortens() -> None:
    """What hooks hide is stored as ranges."""

    def windowed(turns: int) -> int:
        events: list[Event] = []
        for event in invocation("0", turns=turns):
            if isinstance(event, LLMQuerySend):
                drops = tuple(MessageDrop(at, event.messages[at], False) for at in range(2, len(event.messages) - 2))
                event = LLMQuerySend(**{**{f: getattr(event, f) for f in event.__struct_fields__}, "drops": drops})
            events.append(event)
        return len(page(events)) - len(page([]))

    assert windowed(200) < 4.5 * windowed(50)


def test_token_records_are_shown_with_what_is_new_in_each_turn() -> None:
    (item,) = Parts(page(invocation("0", turns=2, tokens=True))).data["invocations"]
    first, second = (turn["tokens"] for turn in item["turns"])
    assert first["prompt_new"] == list(range(100, 120))
    assert first["ids"] == [1000, 1001, 1002, 1003]
    assert first["logprobs"] == [-0.1, -3.0, -0.0001, -9.5]
    assert (second["prompt"], second["prompt_new"]) == (26, [7, 8])
    assert (second["version_at_submit"], second["version_at_return"]) == ("v1", "v2")


# -- that nothing breaks out

NASTY = (
    "</script><script>alert(1)</script><!--<script>\u2028\u2029 {{data}} ]]> & \\ \" ' \x00 \x7f \U0001f600 </SCRIPT >"
)


def test_nothing_that_was_said_breaks_out_of_the_data() -> None:
    text = page(invocation("0", said=NASTY, status="raised"))
    parts = Parts(text)
    assert parts.tags.count("script") == 3
    assert "alert(1)</script" not in text
    assert "\u2028" not in text
    assert "\u2029" not in text
    assert any(NASTY in item for item in parts.texts)
    assert text.encode()


def test_the_page_refers_to_nothing_outside() -> None:
    parts = Parts(page(invocation("0")))
    assert not {"link", "img", "iframe", "object", "embed"} & set(parts.tags)
    assert not [name for name, _ in parts.attributes if name in ("src", "href")]
    for name in ("model.js", "view.js", "page.css"):
        source = resources.files("jaz_actors.recorders.html").joinpath(name).read_text()
        assert "</" not in source
        assert "://" not in source
        assert "innerHTML" not in source


# -- real invocations


class Watch(Hook):
    placement = "observer"

    def __init__(self) -> None:
        self.seen: list[Event] = []

    def on_any(self, event: Event) -> None:
        self.seen.append(event)


class Edits(Hook):
    """Hides an observation, adds a hint to each query and a note for good, changes code and a response."""

    def on_llm_query_enter(self, event: LLMQueryEnter) -> list[Any]:
        effects: list[Any] = [AddMessages([NewMessage("user", f"hint {event.iteration}")])]
        if event.iteration == 1:
            effects.append(AddMessages([NewMessage("user", "a note for good")], index=1, persistent=True))
        if event.iteration == 2:
            effects.append(DropMessages([-1]))
        if event.iteration == 3:
            effects.append(DropMessages([2], persistent=True))
        return effects

    def on_llm_query_complete(self, event: LLMQueryComplete) -> Any:
        if event.iteration == 2:
            return ModifyLLMResponse(Completion("print('changed')"))
        return None

    def on_repl_exec_enter(self, event: Any) -> Any:
        return InsertCode("x = 1\n") if event.iteration == 1 else None


@pytest.fixture(scope="module")
def inline() -> Iterator[None]:
    configure(runtime="inline")
    yield
    shutdown()


@pytest.mark.asyncio
@pytest.mark.usefixtures("inline")
async def test_what_hooks_did_to_messages_can_be_rebuilt_from_the_data() -> None:
    watch = Watch()
    replies = ["print(1)", "print(2)", "print(3)", "print(4)", "1 / 0", "return 5"]
    assert await ainvoke(watch, Edits(), ConfigOverride(backend=Scripted(replies))) == 5
    (item,) = Parts(page(watch.seen)).data["invocations"]
    expected = [[m.number for m in event.messages] for event in watch.seen if isinstance(event, LLMQuerySend)]
    assert rebuilt(item) == expected
    parts = Parts(page(watch.seen))
    assert parts.texts[item["turns"][2]["original"]] == "print(3)"
    assert item["turns"][2]["usage"]["completion_tokens"] == 1  # what the replaced answer took
    assert parts.texts[item["turns"][1]["code_sent"]] == "x = 1\nprint(2)"
    errors = [turn["result"].get("error_text") for turn in item["turns"]]
    assert "ZeroDivisionError" in parts.texts[errors[4]]


def rebuilt(item: dict[str, Any]) -> list[list[int]]:
    """The numbers of the messages that each turn showed, as view and reader understand the data."""
    from jaz_actors.recorders.html.data import Add, Drop, edited

    result, left = [], []
    for turn in item["turns"]:
        buffer = left[: turn.get("keep", 0)] + turn.get("then", [])
        drops, adds = (
            [kind(**change) for change in turn.get(name, [])] for kind, name in ((Drop, "drops"), (Add, "adds"))
        )
        result.append(edited(buffer, drops, adds))
        left = edited(buffer, [drop for drop in drops if drop.persistent], [add for add in adds if add.persistent])
    return result


@pytest.mark.asyncio
@pytest.mark.usefixtures("inline")
async def test_a_real_tree_is_on_the_page_as_its_events_say() -> None:
    watch = Watch()
    top = [
        "print('start')",
        "try:\n    await ainvoke(task='below')\nexcept ValueError as e:\n    print(e)",
        "return 5",
    ]
    below = ["raise ValueError('no')"]

    def answer(request: Any) -> str:
        return below[request.iteration] if request.invoke_id.depth > 1 else top[request.iteration]

    with watch, ConfigOverride(backend=Scripted(answer)):
        assert await ainvoke(task="top") == 5
    parts = Parts(page(watch.seen))
    items = parts.data["invocations"]
    assert [item["outcome"]["status"] for item in items] == ["completed", "raised"]
    assert (items[1]["parent"], items[1]["parent_iteration"]) == (items[0]["id"], 1)
    by_id: dict[str, list[Event]] = defaultdict(list)
    for event in watch.seen:
        by_id[event.invoke_id].append(event)
    for item in items:
        done = [event for event in by_id[item["id"]] if isinstance(event, REPLExecExit)]
        assert len(item["turns"]) == len(done)
        codes = [parts.texts[turn.get("code", turn["response"])] for turn in item["turns"]]
        assert codes == [event.code for event in by_id[item["id"]] if type(event).__name__ == "REPLExecEnter"]
        assert rebuilt(item) == [
            [m.number for m in e.messages] for e in by_id[item["id"]] if isinstance(e, LLMQuerySend)
        ]


# -- the program, in node

RUN_MODEL = """
const Model = require(process.argv[1]);
const { data, texts, script } = JSON.parse(require("fs").readFileSync(0, "utf8"));
const model = Model.build(data, texts);
console.log(JSON.stringify(new Function("Model", "model", script)(Model, model)));
"""


def in_node(events: Any, script: str) -> Any:
    if NODE is None:
        pytest.skip("node is not on PATH")
    parts = Parts(page(events))
    with resources.as_file(resources.files("jaz_actors.recorders.html").joinpath("model.js")) as model:
        done = subprocess.run(
            [NODE, "-e", RUN_MODEL, str(model)],
            input=json.dumps({"data": parts.data, "texts": parts.texts, "script": script}),
            capture_output=True,
            text=True,
        )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_filter_keeps_the_ancestors_of_what_matches() -> None:
    streams = [
        invocation("0"),
        invocation("0.0"),
        invocation("0.0.0", status="failed"),
        invocation("0.1"),
        invocation("1"),
    ]
    rows = in_node(
        [event for stream in streams for event in stream],
        "return [null, new Set(['failed'])].map(outcomes => Model.rows(model, {outcomes})"
        ".map(r => [r.invocation.id.split(':')[1], r.level, r.matched]));",
    )
    assert [row[0] for row in rows[0]] == ["0", "0.0", "0.0.0", "0.1", "1"]
    assert rows[1] == [["0", 0, False], ["0.0", 1, False], ["0.0.0", 2, True]]


def test_search_finds_what_was_said_and_folded_rows_are_left_out() -> None:
    streams = [invocation("0"), invocation("0.0", said="Needle in Hay"), invocation("0.1")]
    found = in_node(
        [event for stream in streams for event in stream],
        "const found = Model.rows(model, {query: 'needle hay'}).filter(r => r.matched);"
        "return [found.map(r => r.invocation.id.split(':')[1]),"
        "Model.rows(model, {collapsed: new Set([model.list[0].id])}).length];",
    )
    assert found == [["0.0"], 1]


@pytest.mark.asyncio
@pytest.mark.usefixtures("inline")
async def test_the_program_shows_the_messages_that_the_model_was_shown() -> None:
    watch = Watch()
    replies = ["print(1)", "print(2)", "print(3)", "print(4)", "1 / 0", "return 5"]
    await ainvoke(watch, Edits(), ConfigOverride(backend=Scripted(replies)))
    turns = in_node(
        watch.seen,
        "const one = model.list[0]; return one.turns.map((t, i) => Model.shown(model, one, i)"
        ".map(e => [e.number, e.state, e.persistent, e.text]));",
    )
    sent = [event for event in watch.seen if isinstance(event, LLMQuerySend)]
    for turn, event in zip(turns, sent, strict=True):
        expected = [[message.number, message.content] for message in event.messages]
        assert [[number, text] for number, state, _, text in turn if state != "hidden"] == expected
        hidden = [number for number, state, *_ in turn if state == "hidden"]
        assert hidden == [drop.message.number for drop in event.drops]
        added = {number for number, state, *_ in turn if state == "added"}
        assert added == {message.number for add in event.adds for message in add.messages}


def test_highlighting_keeps_the_code() -> None:
    code = (
        'x = f"a{1}" + \'b\\\'c\'  # note "here"\n"""doc\n# no"""\n'
        "for i in range(1_0):\n    r = await ainvoke(t='''q\n''')\n"
        'bad = "open\ny = rb"\\x00"; été = 3.5e-7; s = "\U0001f600"\nif x: return "unclosed'
    )
    pieces = in_node(invocation("0"), f"return Model.highlight({json.dumps(code)});")
    assert "".join(piece["text"] for piece in pieces) == code
    kinds = {piece["text"]: piece["kind"] for piece in pieces}
    assert kinds['# note "here"'] == "comment"
    assert kinds['"""doc\n# no"""'] == "string"
    assert kinds["'''q\n'''"] == "string"
    assert (kinds["for"], kinds["range"], kinds["ainvoke"], kinds["1_0"]) == ("keyword", "call", "invoke", "number")
    assert kinds['f"a{1}"'] == "string"


def test_bars_are_never_more_than_pixels_and_zoom_stays_inside() -> None:
    narrow, wide, zooms = in_node(
        invocation("0", turns=100),
        "return [Model.bars(model.list[0], [0, model.end], 150), Model.bars(model.list[0], [0, model.end], 2000),"
        "[Model.zoomed([0, 100], 0.5, 100, 100), Model.zoomed([50, 100], 4, 60, 100)]];",
    )
    assert len(wide) == 201
    assert len(narrow) <= 2 * 150 + 1
    assert all(bar["left"] >= 0 and bar["left"] + bar["width"] <= 151 for bar in narrow)
    assert zooms == [[50, 100], [0, 100]]


def test_totals_count_every_invocation_once_and_costs_of_the_subtree() -> None:
    streams = [invocation("0"), invocation("0.0", status="aborted"), invocation("0.0.0")[:5]]
    total, whole, masks = in_node(
        [event for stream in streams for event in stream] + invocation("1", tokens=True),
        "return [Model.totals(model), model.list[0].whole, Model.tokens(model.list[3].turns[0]).map(t => t.mask)];",
    )
    assert total["outcomes"] == {"completed": 2, "raised": 0, "aborted": 1, "failed": 0, "unfinished": 1}
    assert total["requested"] == 4
    assert whole["cost"] == pytest.approx(0.005)
    assert masks == [0] * 20 + [1] * 4


# -- the page, in a browser


class Browser:
    """A headless Chromium, spoken to over its debugging pipe. Owned by one fixture."""

    def __init__(self, profile: Path) -> None:
        assert CHROMIUM is not None
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()
        arguments = [
            *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
            *("--disable-background-networking", "--remote-debugging-pipe", "--window-size=1400,900"),
            *(f"--user-data-dir={profile}", "about:blank"),
        ]
        # The browser takes its orders at descriptor 3 and answers at 4.
        wrapper = f'exec 8<&{to_read} 9>&{to_write}; exec 3<&8 4>&9; exec "$0" "$@"'
        self._process = subprocess.Popen(
            ["bash", "-c", wrapper, CHROMIUM, *arguments],
            pass_fds=(to_read, to_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self.told: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Runtime", "Page", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        order: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session:
            order["sessionId"] = self._session
        os.write(self._write, json.dumps(order).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer["error"]
                result: dict[str, Any] = answer["result"]
                return result
            self.told.append(answer)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            assert select.select([self._read], [], [], 60)[0], "the browser does not answer"
            data = os.read(self._read, 1 << 20)
            assert data, "the browser has ended"
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\0")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def open(self, file: Path, link: str = "") -> None:
        self.told.clear()
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=f"file://{file}{link}")
        self.wait("document.readyState === 'complete' && !!document.querySelector('#sheet')?.style.height")

    def value(self, expression: str) -> Any:
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, expression: str) -> None:
        end = time.monotonic() + 30
        while not self.value(expression):
            assert time.monotonic() < end, f"never true: {expression}"
            time.sleep(0.02)

    def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key)

    @property
    def complaints(self) -> list[Any]:
        """Exceptions, refusals of the content security policy, and requests for anything but the file."""
        wrong = [item for item in self.told if item["method"] in ("Runtime.exceptionThrown", "Log.entryAdded")]
        asked = [
            item["params"]["request"]["url"] for item in self.told if item["method"] == "Network.requestWillBeSent"
        ]
        return wrong + [url for url in asked if not url.startswith(("file://", "about:"))]

    def close(self) -> None:
        self._session = None
        self.call("Browser.close")
        self._process.wait(30)
        os.close(self._read)
        os.close(self._write)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("no Chromium is on PATH")
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


SELECTED = "document.querySelector('#sheet .selected')?.dataset.id.split(':')[1]"
ROWS = "document.querySelectorAll('#sheet .row').length"


def test_the_page_works_in_a_browser(browser: Browser, tmp_path: Path) -> None:
    streams = [
        invocation("0", tokens=True, retries=1),
        invocation("0.0", said=NASTY, status="raised"),
        invocation("0.1", status="failed")[:-3],
        invocation("1", status="aborted"),
    ]
    file = tmp_path / "page.html"
    file.write_text(page(event for stream in streams for event in stream))
    browser.open(file)
    assert browser.value(ROWS) == 4
    assert browser.value(SELECTED) == "0"
    browser.press("ArrowDown")
    assert browser.value(SELECTED) == "0.0"
    assert browser.value("location.hash") == f"#{RUN}:0.0"
    assert "</script><script>alert(1)" in browser.value("document.getElementById('detail').textContent")
    browser.press("ArrowUp")
    assert browser.value("document.querySelectorAll('.token.mask-1').length") == 8
    colours = browser.value(
        "[...document.querySelectorAll('.mask-1')].slice(0, 4).map(e => getComputedStyle(e).backgroundColor)"
    )
    assert len(set(colours)) == 4
    assert browser.value("document.querySelectorAll('.retry').length") == 2
    browser.open(file, f"#{RUN}:0.1")
    assert browser.value(SELECTED) == "0.1"
    assert "unfinished" in browser.value("document.querySelector('h2').textContent")
    browser.value("document.querySelector('[data-status=aborted]').click()")
    assert browser.value(ROWS) == 1
    browser.value("document.querySelector('[data-status=aborted]').click()")
    browser.value("s = document.getElementById('search'); s.value = 'alert'; s.dispatchEvent(new Event('input'))")
    browser.wait(f"{ROWS} === 2")
    browser.value("location.hash = '#%E0%A4%A'")
    assert browser.complaints == []


def test_zoom_folds_and_colours_in_a_browser(browser: Browser, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    streams = [invocation(path) for path in ("0", "0.0", "0.0.0", "1")]
    file.write_text(page(event for stream in streams for event in stream))
    browser.open(file)
    width = "document.querySelector('#sheet .bar.query').getBoundingClientRect().width"
    narrow = browser.value(width)
    browser.value("document.getElementById('zoom-in').click(); document.getElementById('zoom-out').click()")
    assert browser.value(width) == pytest.approx(narrow)
    browser.value("location.hash = '#" + RUN + ":0.0'")
    browser.wait(f"{SELECTED} === '0.0'")
    for _ in range(2):
        browser.press("+")
    assert browser.value("document.querySelector('#sheet .bar').getBoundingClientRect().width") > 1.5 * narrow
    browser.press("0")
    assert browser.value(width) == pytest.approx(narrow)
    browser.press("ArrowLeft")
    assert browser.value(ROWS) == 3
    browser.press("ArrowRight")
    browser.press("ArrowRight")
    assert (browser.value(ROWS), browser.value(SELECTED)) == (4, "0.0.0")
    back = "getComputedStyle(document.body).backgroundColor"
    seen = []
    for scheme in ("light", "dark"):
        browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        seen.append(browser.value(back))
        browser.value("document.getElementById('theme').click()")
        seen.append(browser.value(back))
        browser.value("delete document.documentElement.dataset.theme")
    assert seen == [seen[0], seen[1], seen[1], seen[0]]
    assert seen[0] != seen[1]
    assert browser.complaints == []


def test_an_invocation_of_a_thousand_turns_opens_at_once_in_a_browser(browser: Browser, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text(page(invocation("0", turns=1000, tokens=True)))
    browser.open(file)
    assert browser.value("document.querySelectorAll('.turn').length") == 1000
    assert browser.value("document.querySelectorAll('#detail *').length") < 10_000
    took = browser.value(
        "(() => { const t = performance.now(); document.querySelectorAll('.turn')[900].open = true;"
        "document.body.offsetHeight; return performance.now() - t; })()"
    )
    browser.wait("document.querySelectorAll('.turn')[900].querySelectorAll('.old').length === 1")
    assert took < 1000
    browser.value("document.querySelectorAll('.turn')[900].querySelector('.old').open = true")
    browser.wait("document.querySelectorAll('.turn')[900].querySelectorAll('.message').length === 1802")
    assert browser.complaints == []


def test_ten_thousand_invocations_stay_usable_in_a_browser(browser: Browser, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    start = time.perf_counter()
    text = page(run_of(10_000))
    built = time.perf_counter() - start
    file.write_text(text)
    browser.open(file)
    assert browser.value(ROWS) < 120
    loaded = browser.value("performance.now()")
    browser.press("End")
    assert browser.value(SELECTED) == "0.999.9"
    timed = "(() => { const t = performance.now(); %s; return performance.now() - t; })()"
    scrolled = browser.value(timed % "document.getElementById('list').scrollTop = 120000; document.body.offsetHeight")
    pressed = browser.value(timed % "dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowUp'}))")
    browser.value("document.querySelector('[data-status=failed]').click()")
    assert int(browser.value("document.getElementById('found').textContent").split(" ")[0].replace(",", "")) == 333
    print(
        f"built {built:.2f} s, {len(text) / 1e6:.1f} MB, loaded {loaded:.0f} ms, {scrolled=:.1f} ms, {pressed=:.1f} ms"
    )
    assert max(scrolled, pressed) < 1000
    assert browser.complaints == []
