"""A host's hold on its zygote and frames: start, talk, interrupt, end. Knows no loop, no prompt, no hook.

All of it belongs to one event loop. Nothing here decodes a value.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from jaz_actors.errors import ConfigurationError, FrameStartFailed
from jaz_actors.frames import posix
from jaz_actors.frames.control import Died, Fork, Forked, FromZygote, Kill, ZygoteConfig
from jaz_actors.frames.wire import LENGTH, FromFrame, ToFrame, frame_bytes, from_frame_decoder

logger = logging.getLogger(__name__)

# Names that a program needs and no secret hides in. Everything else of the environment stays outside frames.
PASSED_ENVIRONMENT = (
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TERM", "VIRTUAL_ENV", "LD_LIBRARY_PATH",
    "LC_ALL", "LC_CTYPE", "LC_NUMERIC", "LC_TIME", "LC_COLLATE", "LC_MESSAGES",
)  # fmt: skip
SINGLE_THREADED = (
    "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS", "VECLIB_MAXIMUM_THREADS",
    "BLIS_NUM_THREADS", "RAYON_NUM_THREADS",
)  # fmt: skip

_START_SECONDS = 60.0
_MAX_OUTPUT = 16 * 2**20
_MAX_DESCRIPTORS = 250
_READ = 1 << 18


@dataclass(frozen=True, slots=True)
class FrameOptions:
    """How frames are made; see `ZygoteConfig`. `environment` is added to what frames get of the host's."""

    preload: tuple[str, ...] = ()
    memory_limit: int | None = 4 * 2**30
    max_processes: int = 128
    environment: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.memory_limit is not None and self.memory_limit < 2**26:
            raise ConfigurationError("memory_limit", "a frame needs at least 64 MiB; give bytes, or None for no limit")
        if self.max_processes < 1:
            raise ConfigurationError("max_processes", "must be at least 1")


class FrameProcess:
    """One live frame. Callbacks run on the loop: `on_message`, then at the very end `on_end(reason)` once."""

    def __init__(self, zygote: Zygote, number: int, link: socket.socket, output: int, work_dir: str) -> None:
        self.number = number
        self.pid = 0
        self.work_dir = work_dir
        self.on_message: Callable[[FromFrame], None] = lambda message: None
        self.on_end: Callable[[str], None] = lambda reason: None
        self._zygote = zygote
        self._loop = asyncio.get_running_loop()
        self._link = link
        self._output = output
        self._old_outputs: list[int] = []
        self._captured: list[bytes] = []
        self._captured_bytes = 0
        self._dropped_bytes = 0
        self._received = bytearray()
        self._unsent: deque[tuple[memoryview, list[int]]] = deque()
        self._closed = False
        self._ended = asyncio.Event()
        self._loop.add_reader(link.fileno(), self._readable)
        self._loop.add_reader(output, self.read_output)

    # -- talking

    def send(self, message: ToFrame, descriptors: Sequence[int] = ()) -> None:
        """Queue a message; the caller keeps `descriptors` open until `send` returns."""
        if self._closed:
            return
        idle = not self._unsent
        data = memoryview(frame_bytes(message))
        kept = [os.dup(fd) for fd in descriptors]
        # The kernel takes a bounded number of descriptors with one write, so the head goes in small pieces.
        while kept:
            self._unsent.append((data[:1], kept[:_MAX_DESCRIPTORS]))
            data, kept = data[1:], kept[_MAX_DESCRIPTORS:]
        self._unsent.append((data, []))
        if idle:
            self._flush()

    def _flush(self) -> None:
        while self._unsent:
            data, descriptors = self._unsent[0]
            try:
                sent = socket.send_fds(self._link, [data], descriptors) if descriptors else self._link.send(data)
            except BlockingIOError:
                self._loop.add_writer(self._link.fileno(), self._flush)
                return
            except OSError:
                self._drop_unsent()  # its end is reported by the zygote
                return
            for fd in descriptors:
                os.close(fd)
            if sent < len(data):
                self._unsent[0] = (data[sent:], [])
            else:
                self._unsent.popleft()
        self._loop.remove_writer(self._link.fileno())

    def _drop_unsent(self) -> None:
        for _, descriptors in self._unsent:
            for fd in descriptors:
                os.close(fd)
        self._unsent.clear()

    def _readable(self) -> None:
        try:
            chunk = self._link.recv(_READ)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        if not chunk:
            self._loop.remove_reader(self._link.fileno())
            return
        received = self._received
        received += chunk
        while len(received) >= 4:
            size = LENGTH.unpack_from(received)[0]
            if len(received) < 4 + size:
                return
            body = bytes(memoryview(received)[4 : 4 + size])
            del received[: 4 + size]
            try:
                message = from_frame_decoder.decode(body)
            except msgspec.MsgspecError:
                logger.warning("frame %d sent what is no message; it is ended", self.number)
                self.kill()
                return
            self.on_message(message)

    # -- output

    def begin_turn(self, *, fresh: bool) -> list[int]:
        """Forget what was written between turns. With `fresh`, a new pipe: gives the descriptor to send along."""
        self.read_output()
        self._captured.clear()
        self._captured_bytes = self._dropped_bytes = 0
        if not fresh:
            return []
        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(read_end, False)
        old = self._output
        self._loop.remove_reader(old)
        self._old_outputs.append(old)
        self._loop.add_reader(old, self._discard, old)
        self._output = read_end
        self._loop.add_reader(read_end, self.read_output)
        return [write_end]

    def take_output(self) -> str:
        """Everything that the turn wrote to stdout and stderr so far, decoded."""
        self.read_output()
        text = b"".join(self._captured).decode("utf-8", "backslashreplace")
        if self._dropped_bytes:
            text += f"\n[… {self._dropped_bytes:,} more bytes of output were dropped …]\n"
        return text

    @property
    def output_bytes(self) -> int:
        return self._captured_bytes + self._dropped_bytes

    def read_output(self) -> None:
        while not self._ended.is_set():
            try:
                chunk = os.read(self._output, _READ)
            except BlockingIOError:
                return
            if not chunk:
                self._loop.remove_reader(self._output)
                return
            kept = chunk[: max(0, _MAX_OUTPUT - self._captured_bytes)]
            if kept:
                self._captured.append(kept)
            self._captured_bytes += len(kept)
            self._dropped_bytes += len(chunk) - len(kept)
            if len(chunk) < 4096:
                return

    def _discard(self, fd: int) -> None:
        with contextlib.suppress(BlockingIOError):
            if not os.read(fd, _READ):
                self._loop.remove_reader(fd)

    # -- life

    def interrupt(self) -> None:
        if self.pid and not self._ended.is_set():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGINT)

    def kill(self) -> None:
        """SIGKILL for the frame and all that it started; `on_end` follows."""
        if not self._ended.is_set():
            self._zygote.send(Kill(self.number))

    def release(self) -> None:
        """An idle frame ends by itself when its socket closes."""
        if not self._closed:
            self._closed = True
            self._drop_unsent()
            self._loop.remove_reader(self._link.fileno())
            self._loop.remove_writer(self._link.fileno())
            self._link.close()

    async def wait_ended(self) -> None:
        await self._ended.wait()

    @property
    def alive(self) -> bool:
        return not self._ended.is_set()

    def end(self, reason: str) -> None:
        """Called by the zygote's owner when the process is gone."""
        if self._ended.is_set():
            return
        if not self._closed:
            # What it had said before it died still counts.
            with contextlib.suppress(OSError):
                while self._link.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT):
                    self._readable()
        self.read_output()
        self.release()
        for fd in (self._output, *self._old_outputs):
            self._loop.remove_reader(fd)
            os.close(fd)
        self._ended.set()
        self.on_end(reason)


class Zygote:
    """Starts frames. `await start()` before the first `fork`; `aclose` ends every frame."""

    def __init__(self, options: FrameOptions, *, name: str = "host") -> None:
        self._options = options
        self._name = name
        self._numbers = itertools.count()
        self._frames: dict[int, FrameProcess] = {}
        self._control: socket.socket | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._ready: asyncio.Future[int] | None = None
        self._starting = asyncio.Lock()  # one zygote at a time, also when it has to be replaced
        self._decoder: msgspec.msgpack.Decoder[FromZygote] = msgspec.msgpack.Decoder(FromZygote)
        self._unsent: deque[tuple[bytes, list[int]]] = deque()
        self._root = ""
        self._closed = False
        self._sweeps: set[asyncio.Future[None]] = set()

    @property
    def frames(self) -> int:
        return len(self._frames)

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    async def start(self) -> None:
        """Idempotent. Raises FrameStartFailed with the zygote's own words when it does not come up."""
        async with self._starting:
            if self._closed:
                raise FrameStartFailed("its host is closed")
            if self._control is not None:
                return
            await self._start()

    async def _start(self) -> None:
        loop = asyncio.get_running_loop()
        if not self._root:
            self._root = tempfile.mkdtemp(prefix=f"jaz-frames-{os.getpid()}-")
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        config = ZygoteConfig(
            self._root,
            [path for path in sys.path if path],
            list(self._options.preload),
            self._options.memory_limit or 0,
            self._options.max_processes,
        )
        self._ready = loop.create_future()
        with theirs:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-m", "jaz_actors.frames.zygote", str(theirs.fileno()),
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
                pass_fds=[theirs.fileno()], env=self._environment(), start_new_session=True,
            )  # fmt: skip
        self._process = process
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(config))
        process.stdin.close()
        self._control = ours
        loop.add_reader(ours.fileno(), self._readable)
        try:
            async with asyncio.timeout(_START_SECONDS):
                await asyncio.shield(self._ready)
        except TimeoutError:
            self._lost("did not start in time")
            raise FrameStartFailed(f"the zygote did not come up within {_START_SECONDS:.0f} s") from None
        except FrameStartFailed as error:
            assert process.stderr is not None
            words = (await process.stderr.read()).decode(errors="replace").strip().splitlines()[-3:]
            raise FrameStartFailed(f"{error.reason}: {' | '.join(words)}") from None

    def _environment(self) -> dict[str, str]:
        environment = {name: os.environ[name] for name in PASSED_ENVIRONMENT if name in os.environ}
        environment |= dict.fromkeys(SINGLE_THREADED, "1")
        environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        return environment | dict(self._options.environment)

    async def fork(self) -> FrameProcess:
        """A new frame, waiting for its Setup. Raises FrameStartFailed."""
        if self._control is None:
            await self.start()
        number = next(self._numbers)
        try:
            link, theirs = socket.socketpair()
            output, write_end = os.pipe2(os.O_CLOEXEC)
        except OSError as error:
            raise FrameStartFailed(
                f"{error}; raise the limit of open files (ulimit -n) or lower max_running"
            ) from error
        link.setblocking(False)
        os.set_blocking(output, False)
        frame = FrameProcess(self, number, link, output, f"{self._root}/{number}")
        self._frames[number] = frame
        self.send(Fork(number, frame.work_dir), [theirs.detach(), write_end])
        return frame

    def send(self, message: Fork | Kill, descriptors: Sequence[int] = ()) -> None:
        """Takes ownership of `descriptors`."""
        self._unsent.append((msgspec.msgpack.encode(message), list(descriptors)))
        if len(self._unsent) == 1:
            self._flush()

    def _flush(self) -> None:
        while self._unsent:
            data, descriptors = self._unsent[0]
            if self._control is not None:
                try:
                    socket.send_fds(self._control, [data], descriptors)
                except BlockingIOError:
                    asyncio.get_running_loop().add_writer(self._control.fileno(), self._flush)
                    return
                except OSError:
                    pass  # the zygote is gone: `_lost` ends its frames
            self._unsent.popleft()
            for fd in descriptors:
                os.close(fd)
        if self._control is not None:
            asyncio.get_running_loop().remove_writer(self._control.fileno())

    def _readable(self) -> None:
        assert self._control is not None
        while True:
            try:
                data = self._control.recv(4096)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._lost("its zygote ended")
                return
            message = self._decoder.decode(data)
            if isinstance(message, Forked):
                self._forked(message)
            else:
                self._died(message)

    def _forked(self, message: Forked) -> None:
        if message.number >= 0:
            frame = self._frames.get(message.number)
            if frame is not None:
                frame.pid = message.pid
        elif self._ready is not None and not self._ready.done():
            self._ready.set_result(message.pid)

    def _died(self, message: Died) -> None:
        frame = self._frames.pop(message.number, None)
        if frame is not None:
            frame.end(message.reason)
            self._remove(frame.work_dir)

    def _lost(self, reason: str) -> None:
        if self._control is not None:
            loop = asyncio.get_running_loop()
            loop.remove_reader(self._control.fileno())
            loop.remove_writer(self._control.fileno())
            self._control.close()
            self._control = None
            self._flush()
        if self._ready is not None and not self._ready.done():
            self._ready.set_exception(FrameStartFailed("the zygote ended"))
            self._ready.exception()
        for frame in list(self._frames.values()):
            self._frames.pop(frame.number, None)
            frame.end(reason)
            self._remove(frame.work_dir)

    def _remove(self, work_dir: str) -> None:
        try:
            os.rmdir(work_dir)
        except FileNotFoundError:
            pass
        except OSError:
            # A folder with something in it may be large: not on the loop.
            loop = asyncio.get_running_loop()
            sweep = loop.run_in_executor(None, lambda: shutil.rmtree(work_dir, ignore_errors=True))
            self._sweeps.add(sweep)
            sweep.add_done_callback(self._sweeps.discard)

    async def aclose(self) -> None:
        """End the zygote and every frame; waits until they are gone. Idempotent."""
        async with self._starting:
            if self._closed:
                return
            self._closed = True
            process = self._process
            frames = list(self._frames.values())
            self._lost("its host was closed")
            if process is not None:
                # The zygote sees its socket close, ends its frames and exits; it is given a moment for that.
                try:
                    async with asyncio.timeout(5):
                        await process.wait()
                except TimeoutError:
                    posix.kill_tree(process.pid)
                    await process.wait()
            for frame in frames:
                await frame.wait_ended()
            if self._sweeps:
                await asyncio.wait(self._sweeps)
            if self._root:
                await asyncio.to_thread(shutil.rmtree, self._root, ignore_errors=True)
