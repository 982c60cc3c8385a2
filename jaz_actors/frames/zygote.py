"""The zygote: a clean, single-threaded, preloaded process that forks frames and buries them.

`python -m jaz_actors.frames.zygote FD` with a JSON `ZygoteConfig` on stdin. It holds no secrets, no Ray and no HTTP;
every frame begins as a copy of it. It never runs model code itself, and ends, with all its frames, when its host does.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import select
import shutil
import signal
import socket
import sys
import time

import msgspec

from jaz_actors.frames import posix
from jaz_actors.frames.control import Died, Fork, Forked, Kill, ToZygote, ZygoteConfig

_WATCH_SECONDS = 0.05
_MAX_PACKET = 4096


class Zygote:
    """Owner of all frame processes of one host."""

    def __init__(self, control: socket.socket, config: ZygoteConfig) -> None:
        self._control = control
        self._config = config
        self._frames: dict[int, int] = {}  # process id -> frame number
        self._decoder: msgspec.msgpack.Decoder[ToZygote] = msgspec.msgpack.Decoder(ToZygote)
        self._children, self._wakeup = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._orphans_at = 0.0
        self._others = posix.task_count()

    def serve(self) -> None:
        signal.signal(signal.SIGCHLD, lambda signum, frame: None)
        signal.set_wakeup_fd(self._wakeup, warn_on_full_buffer=False)
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(self._children, select.POLLIN)
        while True:
            ready = poll.poll(_WATCH_SECONDS * 1000 if self._frames or self._orphans_at else None)
            for fd, _ in ready:
                if fd == self._children:
                    os.read(self._children, 4096)
                    self._bury()
                elif not self._receive():
                    return
            self._watch()

    def _receive(self) -> bool:
        data, descriptors, _, _ = socket.recv_fds(self._control, _MAX_PACKET, 8)
        if not data:
            return False
        message = self._decoder.decode(data)
        if isinstance(message, Kill):
            for pid, number in self._frames.items():
                if number == message.number:
                    posix.kill_tree(pid)
                    break
            return True
        self._fork(message, descriptors)
        return True

    def _fork(self, message: Fork, descriptors: list[int]) -> None:
        try:
            pid = os.fork()
        except OSError as error:
            self._send(Died(message.number, 0, f"fork failed: {error}"))
        else:
            if pid == 0:
                self._become_frame(message, descriptors)
            self._frames[pid] = message.number
            self._send(Forked(message.number, pid))
        finally:
            for fd in descriptors:
                os.close(fd)

    def _become_frame(self, message: Fork, descriptors: list[int]) -> None:
        status = 1
        try:
            self._control.close()
            signal.set_wakeup_fd(-1)
            os.close(self._children)
            os.close(self._wakeup)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            link, output = descriptors
            for fd in (1, 2):
                os.dup2(output, fd)
            os.close(output)
            posix.settle_frame(self._config.memory_limit)
            os.mkdir(message.work_dir, 0o700)
            os.chdir(message.work_dir)
            os.environ["TMPDIR"] = message.work_dir
            _reseed()
            from jaz_actors.frames.child import run_frame

            run_frame(socket.socket(fileno=link))
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(status)

    def _bury(self) -> None:
        """Reap what has ended and tell the host how."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            number = self._frames.pop(pid, None)
            if number is not None:
                self._send(Died(number, status, posix.describe_status(status)))
                self._orphans_at = self._orphans_at or time.monotonic() + _WATCH_SECONDS

    def _watch(self) -> None:
        """End what frames left behind, and frames that have too many processes."""
        if self._orphans_at and time.monotonic() >= self._orphans_at:
            self._orphans_at = 0.0
            self.kill_orphans()
        others = posix.task_count() - len(self._frames)
        if others - self._others < self._config.max_processes:
            self._others = min(self._others, others)
            return
        self._others = others
        for pid in list(self._frames):
            if len(posix.descendants(pid)) > self._config.max_processes:
                posix.kill_tree(pid)

    def kill_orphans(self) -> None:
        """What a dead frame had started is now a child of this process, and no frame."""
        for _ in range(100):
            orphans = [pid for pid in posix.children_of(os.getpid()) if pid not in self._frames]
            if not orphans:
                return
            for pid in orphans:
                posix.kill_tree(pid)
            self._bury()

    def close(self) -> None:
        for pid in list(self._frames):
            posix.kill_tree(pid)
        self._frames.clear()
        self.kill_orphans()
        # A host that was killed cannot do it.
        shutil.rmtree(self._config.root, ignore_errors=True)

    def _send(self, message: Forked | Died) -> None:
        with contextlib.suppress(OSError):  # the host is gone: the next receive says so and ends this process
            self._control.send(msgspec.msgpack.encode(message))


def _reseed() -> None:
    """Python reseeds `random` after a fork by itself; numpy's global generator does not."""
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()


def main() -> None:
    config = msgspec.json.decode(sys.stdin.buffer.read(), type=ZygoteConfig)
    control = socket.socket(fileno=int(sys.argv[1]))
    posix.settle_zygote()
    devnull = os.open(os.devnull, os.O_RDONLY)
    os.dup2(devnull, 0)
    sys.path[:] = config.sys_path
    sys.argv[:] = [""]
    from jaz_actors.frames.rehearsal import rehearse

    for name in ("jaz_actors.hooks.returns", *config.preload):
        importlib.import_module(name)
    rehearse()
    # Memory that the collector never touches again stays shared with every frame.
    gc.collect()
    gc.freeze()
    gc.disable()
    zygote = Zygote(control, config)
    control.send(msgspec.msgpack.encode(Forked(-1, os.getpid())))
    try:
        zygote.serve()
    finally:
        zygote.close()


if __name__ == "__main__":
    main()
