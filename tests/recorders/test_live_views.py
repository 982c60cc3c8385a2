"""Views that follow a run give the same as those made afterwards; traces arrive at a real server."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from jaz_actors import ConfigOverride, JaegerTracing, Recorder, Scripted, TrajectoryDirectoryRecorder, ainvoke
from jaz_actors.protocols import CompletionRequest
from jaz_actors.recorders.directory import write_directory
from jaz_actors.recorders.runs import RecordedRun

cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("runtime")]


def answer(request: CompletionRequest) -> str:
    if request.invoke_id.depth == 1:
        return "print(1)" if request.iteration == 0 else "return [invoke(n=n) for n in range(2)]"
    return "return n"


async def test_the_directory_of_a_running_run_is_that_of_its_record(tmp_path: Path) -> None:
    live, batch = tmp_path / "live", tmp_path / "batch"
    with ConfigOverride(backend=Scripted(answer)), Recorder(tmp_path / "run"), TrajectoryDirectoryRecorder(live):
        await ainvoke(task="t")  # the root seen first has the folder itself: let it be the same one in both
        await asyncio.gather(*(ainvoke(task="t") for _ in range(3)))
    write_directory(batch, RecordedRun(tmp_path / "run").events(), all=True)

    def files(folder: Path) -> dict[str, bytes]:
        return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    assert set(files(live)) == set(files(batch))
    assert len(files(live)) > 9


@pytest.fixture
def collector() -> Iterator[tuple[str, list[Any]]]:
    received: list[Any] = []

    class Takes(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Takes)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1/traces", received
    server.shutdown()
    server.server_close()
    thread.join()


async def test_spans_of_a_tree_are_one_trace(collector: tuple[str, list[Any]]) -> None:
    endpoint, received = collector
    with ConfigOverride(backend=Scripted(answer)), JaegerTracing(endpoint):
        await ainvoke(task="t")
    spans = [
        span
        for body in received
        for resource in body["resourceSpans"]
        for scope in resource["scopeSpans"]
        for span in scope["spans"]
    ]
    assert len(spans) == 3 + 2 * (2 + 1 + 1)
    assert len({span["traceId"] for span in spans}) == 1
    assert sum("parentSpanId" not in span for span in spans) == 1
