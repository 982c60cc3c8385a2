"""Start and stop the embedded engine as a process of its own. Needs no torch here."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import subprocess
import sys
import tempfile
import time
import weakref
from pathlib import Path
from typing import Self

from jaz_actors.errors import InfrastructureError

TINY_POLICY = Path(__file__).resolve().parent / "tiny_policy"
START_SECONDS = 120.0
STOP_SECONDS = 8.0
POLL_SECONDS = 0.02
TAIL_LINES = 5

# Resolved once: where this very `jaz_actors` is imported from, whatever the child's own path would find.
_IMPORT_ROOT = Path(sys.modules["jaz_actors"].__path__[0]).parent

_running: weakref.WeakSet[EmbeddedEngine] = weakref.WeakSet()


class EngineStartFailed(InfrastructureError):
    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"the embedded engine did not start: {self.reason}"


class EmbeddedEngine:
    """`with EmbeddedEngine() as engine: SGLang(engine.url)`, or `async with`: a real server on CPU, in its own process.

    model_path:    a Hugging Face causal-LM folder; None is the tiny policy of the package.
    slots:         sequences generated at once. threads: torch threads of one operation.
    context_length:  tokens of prompt and output; None is the model's own.
    weight_version:  label of the weights in the folder.
    token_log:     a file to which the server appends a JSON line for each sequence that it has generated.
    start_seconds: how long it may take until it serves.

    Raises EngineStartFailed with the server's last words. The process ends with this one, however this one ends.
    """

    def __init__(
        self,
        model_path: str | Path | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        slots: int = 64,
        threads: int = 1,
        context_length: int | None = None,
        weight_version: str = "default",
        token_log: str | Path | None = None,
        start_seconds: float = START_SECONDS,
    ) -> None:
        self.model_path = Path(model_path) if model_path is not None else TINY_POLICY
        self._host = host
        self._port = port
        self._slots = slots
        self._threads = threads
        self._weight_version = weight_version
        self._more = [] if context_length is None else ["--context-length", str(context_length)]
        if token_log is not None:
            self._more += ["--token-log", str(Path(token_log).resolve())]
        self._start_seconds = start_seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    @property
    def url(self) -> str:
        return f"http://{self._host}:{self._port}"

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def start(self) -> Self:
        deadline = self._spawn()
        while not self._is_ready(deadline):
            time.sleep(POLL_SECONDS)
        return self

    def stop(self) -> None:
        """Terminate, then kill. Idempotent."""
        process = self._process
        if process is not None:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._forget()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        # Spawned on this thread and not a worker's: the process must not outlive, nor end with, some pool's thread.
        deadline = self._spawn()
        try:
            while not self._is_ready(deadline):  # noqa: ASYNC110  another process tells of itself by a file
                await asyncio.sleep(POLL_SECONDS)
        except asyncio.CancelledError:
            self.stop()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        # Shielded: cancelling the owner must not leave the process behind.
        await asyncio.shield(asyncio.to_thread(self.stop))

    def _spawn(self) -> float:
        """Returns the deadline, on the monotonic clock. Raises EngineStartFailed."""
        if not (self.model_path / "config.json").is_file():
            raise EngineStartFailed(f"{self.model_path} is no model folder: it has no config.json")
        self._folder = tempfile.TemporaryDirectory(prefix="jaz-engine-")
        environment = dict(os.environ)
        environment["PYTHONPATH"] = os.pathsep.join([str(_IMPORT_ROOT), *filter(None, [environment.get("PYTHONPATH")])])
        with self._log_path.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-P", "-m", "jaz_actors.backends.embedded"),
                    *("--exit-with-parent", str(os.getpid())),
                    *("--model-path", str(self.model_path)),
                    *("--host", self._host, "--port", str(self._port), "--port-file", str(self._port_path)),
                    *("--slots", str(self._slots), "--threads", str(self._threads)),
                    *("--weight-version", self._weight_version, *self._more),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,  # a Ctrl-C is for its owner, who then stops it
            )
        _running.add(self)
        return time.monotonic() + self._start_seconds

    def _is_ready(self, deadline: float) -> bool:
        """Raises EngineStartFailed once it cannot become ready."""
        assert self._process is not None
        if self._port_path.exists():
            self._port = int(self._port_path.read_text())
            return True
        status = self._process.poll()
        if status is None and time.monotonic() < deadline:
            return False
        tail = self._log_path.read_text(errors="replace").strip().splitlines()[-TAIL_LINES:]
        self.stop()
        what = f"exit status {status}" if status is not None else f"not ready after {self._start_seconds:g} s"
        raise EngineStartFailed(": ".join([what, " | ".join(tail)]) if tail else what)

    def _forget(self) -> None:
        self._process = None
        _running.discard(self)
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    @property
    def _port_path(self) -> Path:
        assert self._folder is not None
        return Path(self._folder.name) / "port"

    @property
    def _log_path(self) -> Path:
        assert self._folder is not None
        return Path(self._folder.name) / "log"


@atexit.register
def _stop_all() -> None:
    for engine in list(_running):
        with contextlib.suppress(OSError):
            engine.stop()
