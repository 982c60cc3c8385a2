"""Start and stop the embedded engine as a process of its own. Needs no torch here."""

from __future__ import annotations

import atexit
import subprocess
import sys
import tempfile
import time
import weakref
from pathlib import Path

from jaz_actors.errors import InfrastructureError

TINY_POLICY = Path(__file__).resolve().parent / "tiny_policy"
START_SECONDS = 120.0
STOP_SECONDS = 5.0

_running: weakref.WeakSet[EmbeddedEngine] = weakref.WeakSet()


class EngineStartFailed(InfrastructureError):
    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"the embedded engine did not start: {self.reason}"


class EmbeddedEngine:
    """`with EmbeddedEngine() as engine: SGLang(engine.url)`: a real server on CPU, with the tiny policy by default.

    model_path: a Hugging Face causal-LM folder. threads: torch threads of one operation. Raises EngineStartFailed with
    the server's last words.
    """

    def __init__(
        self, model_path: str | Path | None = None, *, host: str = "127.0.0.1", port: int = 0, slots: int = 64, threads: int = 1
    ) -> None:
        self.model_path = Path(model_path) if model_path is not None else TINY_POLICY
        self._host = host
        self._port = port
        self._slots = slots
        self._threads = threads
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    @property
    def url(self) -> str:
        return f"http://{self._host}:{self._port}"

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def start(self) -> EmbeddedEngine:
        folder = self._folder = tempfile.TemporaryDirectory(prefix="jaz-engine-")
        port_file = Path(folder.name) / "port"
        log_path = Path(folder.name) / "log"
        with log_path.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    sys.executable, "-m", "jaz_actors.backends.embedded", "--exit-with-parent",
                    "--model-path", str(self.model_path), "--host", self._host, "--port", str(self._port),
                    "--port-file", str(port_file), "--slots", str(self._slots), "--threads", str(self._threads),
                ],
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        _running.add(self)
        deadline = time.monotonic() + START_SECONDS
        while not port_file.exists():
            ended = self._process.poll() is not None
            if ended or time.monotonic() > deadline:
                words = log_path.read_text(errors="replace").strip().splitlines()[-3:]
                self.stop()
                raise EngineStartFailed(" | ".join(words) if words else "it took too long and said nothing")
            time.sleep(0.02)
        self._port = int(port_file.read_text())
        return self

    def stop(self) -> None:
        """Terminate, then kill. Idempotent."""
        process, self._process = self._process, None
        _running.discard(self)
        if process is not None:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def __enter__(self) -> EmbeddedEngine:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()


@atexit.register
def _stop_all() -> None:
    for engine in list(_running):
        engine.stop()
