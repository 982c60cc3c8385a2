"""The exporter and its presets, against a real server on this machine."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import pytest_asyncio

from jaz_actors.errors import ConfigurationError, ExportFailed
from jaz_actors.recorders import span_exporter
from jaz_actors.recorders.span_exporter import SpanExporter, jaeger, langfuse
from jaz_actors.recorders.spans import spans
from tests.recorders.synthetic import invocation

FOUND = spans(invocation("0"))


@dataclass
class Server:
    """Answers with what it is given, then with {}; remembers what it was sent."""

    url: str = ""
    answers: list[tuple[int, dict[str, str], bytes]] = field(default_factory=list)
    asked: list[tuple[str, dict[str, str], Any]] = field(default_factory=list)

    @property
    def spans(self) -> list[Any]:
        return [span for _, _, body in self.asked for span in body["resourceSpans"][0]["scopeSpans"][0]["spans"]]


@pytest.fixture
def server() -> Iterator[Server]:
    held = Server()

    class Answers(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            held.asked.append((self.path, headers, json.loads(body)))
            status, more, answer = held.answers.pop(0) if held.answers else (200, {}, b"{}")
            self.send_response(status)
            for name, value in {**more, "content-length": str(len(answer))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *arguments: object) -> None:
            pass

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    held.url = f"http://127.0.0.1:{listening.server_port}"
    thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield held
    listening.shutdown()
    listening.server_close()
    thread.join()


@pytest_asyncio.fixture
async def exporter(server: Server) -> AsyncIterator[SpanExporter]:
    async with SpanExporter(f"{server.url}/v1/traces", {"x-tenant": "me"}) as made:
        yield made


@pytest.mark.asyncio
async def test_spans_are_posted_as_json_with_the_headers(server: Server, exporter: SpanExporter) -> None:
    await exporter.export(FOUND)
    ((path, headers, body),) = server.asked
    assert path == "/v1/traces"
    assert headers["content-type"] == "application/json"
    assert headers["x-tenant"] == "me"
    assert body["resourceSpans"][0]["resource"]["attributes"][0]["value"] == {"stringValue": "jaz-actors"}
    assert server.spans == FOUND


@pytest.mark.asyncio
async def test_no_spans_are_no_request(server: Server, exporter: SpanExporter) -> None:
    await exporter.export([])
    assert server.asked == []


@pytest.mark.asyncio
async def test_many_spans_are_several_requests_of_bounded_size(
    server: Server, exporter: SpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(span_exporter, "MAX_BODY", 10_000)
    many = [span for number in range(20) for span in spans(invocation(str(number)))]
    await exporter.export(many)
    assert server.spans == many
    assert len(server.asked) > 5
    assert all(int(headers["content-length"]) < 10_500 for _, headers, _ in server.asked)


@pytest.mark.asyncio
@pytest.mark.parametrize("status", [429, 502, 503, 504])
async def test_what_may_pass_is_sent_again(server: Server, exporter: SpanExporter, status: int) -> None:
    server.answers = [(status, {"retry-after": "0"}, b"later")] * 2
    await exporter.export(FOUND)
    assert len(server.asked) == 3


@pytest.mark.asyncio
async def test_a_server_that_stays_busy_fails_the_export(
    server: Server, exporter: SpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(span_exporter, "FIRST_WAIT", 0.001)
    server.answers = [(503, {}, b"later")] * 9
    with pytest.raises(ExportFailed, match="later") as failed:
        await exporter.export(FOUND)
    assert failed.value.status == 503
    assert len(server.asked) == span_exporter.ATTEMPTS


@pytest.mark.asyncio
async def test_a_refusal_is_not_repeated(server: Server, exporter: SpanExporter) -> None:
    server.answers = [(401, {}, b"bad key")]
    with pytest.raises(ExportFailed, match=r"\(401\): bad key"):
        await exporter.export(FOUND)
    assert len(server.asked) == 1


@pytest.mark.asyncio
async def test_spans_that_the_server_rejects_fail_the_export(server: Server, exporter: SpanExporter) -> None:
    server.answers = [(200, {}, b'{"partialSuccess": {"rejectedSpans": "2", "errorMessage": "too old"}}')]
    with pytest.raises(ExportFailed, match="2 spans were rejected: too old"):
        await exporter.export(FOUND)


@pytest.mark.asyncio
@pytest.mark.parametrize("answer", [b"", b"ok", b"{}", b'{"partialSuccess": {}}', b'{"partialSuccess": null}'])
async def test_other_answers_of_success_are_taken(server: Server, exporter: SpanExporter, answer: bytes) -> None:
    server.answers = [(200, {}, answer)]
    await exporter.export(FOUND)


@pytest.mark.asyncio
async def test_no_server_fails_the_export(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(span_exporter, "FIRST_WAIT", 0.001)
    async with jaeger("http://127.0.0.1:9/v1/traces") as exporter:
        with pytest.raises(ExportFailed) as failed:
            await exporter.export(FOUND)
    assert failed.value.status is None


@pytest.mark.asyncio
async def test_a_cancelled_export_ends_at_once(server: Server, exporter: SpanExporter) -> None:
    server.answers = [(503, {"retry-after": "20"}, b"")]
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(exporter.export(FOUND), 0.5)


@pytest.mark.asyncio
async def test_langfuse_is_asked_with_both_keys(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANGFUSE_PUBLIC_KEY", "pk-1")
    monkeypatch.setenv("LANGFUSE_SECRET_KEY", "sk-2")
    monkeypatch.setenv("LANGFUSE_HOST", server.url + "/")
    async with langfuse() as exporter:
        await exporter.export(FOUND)
    ((path, headers, _),) = server.asked
    assert path == "/api/public/otel/v1/traces"
    assert base64.b64decode(headers["authorization"].removeprefix("Basic ")) == b"pk-1:sk-2"
    assert "sk-2" not in repr(exporter)


def test_langfuse_takes_its_server_from_what_is_nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PUBLIC_KEY", "SECRET_KEY", "HOST", "BASE_URL"):
        monkeypatch.delenv(f"LANGFUSE_{name}", raising=False)
    path = "/api/public/otel/v1/traces"
    assert langfuse("p", "s").endpoint == f"https://cloud.langfuse.com{path}"
    monkeypatch.setenv("LANGFUSE_BASE_URL", "https://base")
    assert langfuse("p", "s").endpoint == f"https://base{path}"
    monkeypatch.setenv("LANGFUSE_HOST", "https://host")
    assert langfuse("p", "s").endpoint == f"https://host{path}"
    assert langfuse("p", "s", "https://given").endpoint == f"https://given{path}"


@pytest.mark.parametrize("missing", ["PUBLIC_KEY", "SECRET_KEY"])
def test_langfuse_without_a_key_is_refused(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PUBLIC_KEY", "SECRET_KEY"):
        monkeypatch.setenv(f"LANGFUSE_{name}", " " if name == missing else "k")
    with pytest.raises(ConfigurationError, match=f"LANGFUSE_{missing}"):
        langfuse()


def test_jaeger_is_the_collector_on_this_machine() -> None:
    assert jaeger().endpoint == "http://localhost:4318/v1/traces"


@pytest.mark.parametrize("endpoint", ["localhost:4318", "ftp://x", "", "http://"])
def test_an_endpoint_that_is_no_url_is_refused(endpoint: str) -> None:
    with pytest.raises(ConfigurationError):
        SpanExporter(endpoint)
