"""A frame's end of its socket. Knows framing and who waits for which reply; nothing of namespaces.

While the code only computes, the frame has one thread: the main thread reads its next command itself. The first call
that leaves the frame starts a receiver thread, which owns all reading from then on, so that replies reach any thread
and lent objects can be used while the main thread is busy.
"""

from __future__ import annotations

import itertools
import os
import queue
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future

from jaz_actors.errors import FrameLost
from jaz_actors.frames.wire import (
    LENGTH,
    AskHook,
    Call,
    CancelCall,
    ChildCall,
    FromFrame,
    ReferenceCall,
    Reply,
    Serve,
    ToFrame,
    frame_bytes,
    to_frame_decoder,
)
from jaz_actors.shared import map_readonly

_READ = 1 << 18
_MAX_DESCRIPTORS = 250


class Link:
    """One frame's conversation with its host. `send` and `call` are safe from any thread."""

    def __init__(self, connection: socket.socket, serve: Callable[[Serve | AskHook], None]) -> None:
        self._pid = os.getpid()
        self._socket = connection
        self._serve = serve
        self._buffer = bytearray()
        self._descriptors: list[int] = []
        self._send_lock = threading.Lock()  # keeps messages whole on the socket
        self._calls = itertools.count()
        self._waiting: dict[int, Future[Reply]] = {}
        self._commands: queue.SimpleQueue[ToFrame] = queue.SimpleQueue()
        self._receiver: threading.Thread | None = None
        self._start_lock = threading.Lock()  # at most one receiver
        self._read_lock = threading.Lock()  # one reader of the socket at a time

    def next_command(self) -> ToFrame:
        """The next Setup, Execute or Rebind. Ends the process when the host is gone. Main thread only."""
        while self._receiver is None:
            with self._read_lock:
                if self._receiver is not None:
                    break
                message = self._read()
            if not self._dispatch(message):
                return message
        return self._commands.get()

    def send(self, message: FromFrame) -> None:
        data = frame_bytes(message)
        with self._send_lock:
            self._socket.sendall(data)

    def call(self, body: ChildCall | ReferenceCall) -> tuple[int, Future[Reply]]:
        """Ask the host for something; its reply completes the future."""
        if os.getpid() != self._pid:
            raise FrameLost("only the agent's own process can call out, not one that it forked")
        self._start_receiver()
        number = next(self._calls)
        future: Future[Reply] = Future()
        self._waiting[number] = future
        try:
            self.send(Call(number, body))
        except OSError as error:
            self._waiting.pop(number, None)
            raise FrameLost("its host is gone") from error
        return number, future

    def cancel(self, number: int) -> None:
        if self._waiting.pop(number, None) is not None:
            self.send(CancelCall(number))

    def take_descriptors(self, sizes: list[int]) -> list[memoryview]:
        """Map the descriptors that came with the last message, in order."""
        views = []
        for size in sizes:
            fd = self._descriptors.pop(0)
            views.append(map_readonly(fd, size))
            os.close(fd)
        return views

    def take_output(self) -> None:
        """Make the descriptor that came with the last message stdout and stderr."""
        fd = self._descriptors.pop(0)
        os.dup2(fd, 1)
        os.dup2(fd, 2)
        os.close(fd)

    @property
    def receiver_ident(self) -> int | None:
        return None if self._receiver is None else self._receiver.ident

    def _start_receiver(self) -> None:
        with self._start_lock:
            if self._receiver is None:
                self._receiver = threading.Thread(target=self._receive, name="jaz-receiver", daemon=True)
                self._receiver.start()

    def _receive(self) -> None:
        while True:
            with self._read_lock:
                message = self._read()
            if not self._dispatch(message):
                self._commands.put(message)

    def _dispatch(self, message: ToFrame) -> bool:
        """Whether the message was for someone else than the main thread, and is done."""
        if isinstance(message, Reply):
            future = self._waiting.pop(message.call, None)
            if future is not None:
                future.set_result(message)
            return True
        if isinstance(message, (Serve, AskHook)):
            self._serve(message)
            return True
        return False

    def _read(self) -> ToFrame:
        size = LENGTH.unpack(self._exactly(4))[0]
        return to_frame_decoder.decode(self._exactly(size))

    def _exactly(self, count: int) -> bytes:
        while len(self._buffer) < count:
            try:
                chunk, descriptors, _, _ = socket.recv_fds(self._socket, max(_READ, count), _MAX_DESCRIPTORS)
            except OSError:
                chunk, descriptors = b"", []
            if not chunk:
                os._exit(0)  # the host ended this frame; nothing here may outlive it
            self._buffer += chunk
            self._descriptors += descriptors
        data = bytes(self._buffer[:count])
        del self._buffer[:count]
        return data
