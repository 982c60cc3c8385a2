"""Run a frame's whole way in the zygote itself, before the first fork.

What Python makes lazily (specialised bytecode, caches, interned names) then exists once and stays shared: every page
that a frame need not write is one that it need not copy. Leaves the process as it found it.
"""

from __future__ import annotations

import signal
import socket
import sys

from jaz_actors import refs
from jaz_actors.frames import entry
from jaz_actors.frames.calls import FrameCalls
from jaz_actors.frames.child import Frame
from jaz_actors.frames.link import Link
from jaz_actors.frames.wire import Execute, Limits, Setup, frame_bytes
from jaz_actors.payload import PackedInput
from jaz_actors.transfer import pack

# The interpreter specialises a function within about this many runs.
ROUNDS = 20

_TURNS = (
    "x = 1",
    "def double(a):\n    return 2 * a\nfor i in range(3):\n    x += double(i)",
    "numbers = [n for n in range(9) if n % 2]\nwords = ' '.join(str(n) for n in numbers).split()",
    "if x > 1:\n    return {'x': x, 'words': words}",
    "return sum(numbers)",
)


def rehearse() -> None:
    kept = sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__, sys.displayhook
    interrupt = signal.getsignal(signal.SIGINT)
    setup = Setup("rehearsal", (PackedInput("task", pack("rehearse")),), (), Limits(1000, 0.5))
    try:
        for _ in range(ROUNDS):
            _round(setup)
    finally:
        sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__, sys.displayhook = kept  # type: ignore[misc]
        signal.signal(signal.SIGINT, interrupt)
        refs.install(None)
        entry.install(None)


def _round(setup: Setup) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(frame_bytes(setup))
        link = Link(theirs, lambda message: None)
        link.next_command()
        calls = FrameCalls(setup)
        calls.link = link
        frame = Frame(link, calls, setup)
        frame.prepare()
        for number, code in enumerate(_TURNS):
            ours.sendall(frame_bytes(Execute(number, code, f"<repl_{number}>")))
            command = link.next_command()
            assert isinstance(command, Execute)
            link.send(frame.execute(command))
