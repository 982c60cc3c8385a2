"""The server process: load, listen, announce the port, serve, and on a signal answer everyone before leaving."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import uvicorn
from transformers.utils import logging as transformers_logging

from jaz_actors.backends.embedded.engine import Engine
from jaz_actors.backends.embedded.model_folder import UnservableModel, load_model
from jaz_actors.backends.embedded.server import Server

BACKLOG = 2048
# Beyond the pauses of a client that keeps its connections.
KEEP_ALIVE_SECONDS = 120
DRAIN_SECONDS = 5
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def serve(
    model_path: Path,
    *,
    host: str,
    port: int,
    port_file: Path | None,
    rows: int,
    threads: int,
    context_length: int | None,
    weight_version: str,
    token_log: Path | None,
) -> int:
    """The exit status."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    transformers_logging.disable_progress_bar()
    try:
        loaded = load_model(model_path, context_length=context_length)
        listener = socket.create_server((host, port), backlog=BACKLOG)
    except (UnservableModel, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    engine = Engine(loaded, rows=rows, threads=threads, weight_version=weight_version, token_log=token_log)
    actual = listener.getsockname()[1]

    def announce() -> None:
        if port_file is not None:
            _write_whole(port_file, str(actual))
        print(f"serving {model_path} on http://{host}:{actual}", flush=True)

    engine.start()
    try:
        asyncio.run(_run(engine, listener, announce))
    finally:
        engine.close()
        engine.join()
    return 0


async def _run(engine: Engine, listener: socket.socket, announce: Callable[[], None]) -> None:
    config = uvicorn.Config(
        Server(engine).app(),
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="none",
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=DRAIN_SECONDS,
    )
    server = _AnnouncingServer(config, announce)

    def stop() -> None:
        # The engine first: it ends what is running, so that the server has an answer for everyone it waits for.
        engine.close()
        server.should_exit = True

    loop = asyncio.get_running_loop()
    for one in STOP_SIGNALS:
        loop.add_signal_handler(one, stop)
    await server.serve(sockets=[listener])


class _AnnouncingServer(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, announce: Callable[[], None]) -> None:
        super().__init__(config)
        self._announce = announce

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        self._announce()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Ours are on the loop already; uvicorn would raise them again at the end and so spoil the exit status."""
        yield


def _write_whole(path: Path, text: str) -> None:
    part = path.with_name(f"{path.name}.part")
    part.write_text(text)
    part.replace(path)
