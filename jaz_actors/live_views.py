"""Views of a run while it goes on: folders, logs, traces. Observers: they delay no invocation."""

from __future__ import annotations

import logging
from concurrent.futures import Future, wait
from os import PathLike
from typing import Any, Protocol

from jaz_actors.events import AnyEvent
from jaz_actors.hooks.base import Hook
from jaz_actors.recorders.directory import Directory
from jaz_actors.recorders.span_exporter import SpanExporter, jaeger, langfuse
from jaz_actors.recorders.spans import Span, SpanFold
from jaz_actors.threads import LoopThread

logger = logging.getLogger(__name__)

SPANS_SENT_AT_ONCE = 512
SENDING_SECONDS = 30.0


class Fold(Protocol):
    """A view: takes every event; `close`, if it has one, is called at the end."""

    def add(self, event: AnyEvent) -> object: ...


class View(Hook):
    """Gives every event of the block to a view, such as those of `jaz_actors.recorders`, as they come."""

    placement = "observer"

    def __init__(self, view: Fold) -> None:
        self.view = view

    def on_any(self, event: Any) -> None:
        self.view.add(event)

    def teardown(self, error: BaseException | None) -> None:
        close = getattr(self.view, "close", None)
        if close is not None:
            close()


class TrajectoryDirectoryRecorder(View):
    """A folder of Markdown that grows with the run; see `recorders.directory`."""

    def __init__(self, path: str | PathLike[str], *, all: bool = True) -> None:  # noqa: A002
        super().__init__(Directory(path, all=all))


class Tracing(Hook):
    """Sends OpenTelemetry spans as they end: an invocation, its queries, its executions; one trace a root.

    What could not be sent is logged. At the end of the block, what is still open is sent as it is.
    """

    placement = "observer"

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self._fold = SpanFold()
        self._ended: list[Span] = []
        self._sending: set[Future[None]] = set()
        self._thread: LoopThread | None = None

    def setup(self) -> None:
        self._fold = SpanFold()
        self._thread = LoopThread("jaz-spans")

    def on_any(self, event: Any) -> None:
        self._ended += self._fold.add(event)
        if len(self._ended) >= SPANS_SENT_AT_ONCE:
            self._send()

    def _send(self) -> None:
        spans, self._ended = self._ended, []
        if spans and self._thread is not None:
            future = self._thread.submit(self._exporter.export(spans))
            self._sending.add(future)
            future.add_done_callback(self._sent)

    def _sent(self, future: Future[None]) -> None:
        self._sending.discard(future)
        error = None if future.cancelled() else future.exception()
        if error is not None:
            logger.warning("spans are lost: %s", error)

    def teardown(self, error: BaseException | None) -> None:
        if self._thread is None:
            return
        for spans in self._fold.unfinished().values():
            self._ended += spans
        self._send()
        wait(list(self._sending), timeout=SENDING_SECONDS)
        self._thread.submit(self._exporter.aclose()).result(SENDING_SECONDS)
        self._thread.stop()
        self._thread = None


class JaegerTracing(Tracing):
    """To a Jaeger, or any OpenTelemetry collector, by OTLP over HTTP."""

    def __init__(self, endpoint: str = "http://localhost:4318/v1/traces") -> None:
        super().__init__(jaeger(endpoint))


class LangfuseTracing(Tracing):
    """To Langfuse; keys and address by default from the LANGFUSE_ variables of the environment."""

    def __init__(
        self, public_key: str | None = None, secret_key: str | None = None, base_url: str | None = None
    ) -> None:
        super().__init__(langfuse(public_key, secret_key, base_url))
