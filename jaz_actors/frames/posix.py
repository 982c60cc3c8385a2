"""What frames need of the Linux kernel: who dies with whom, limits, process trees. Knows nothing of the protocol."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import time
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36

_libc = ctypes.CDLL(None, use_errno=True)

# Frames yield to hosts, so that a busy frame cannot starve the loop that watches it.
FRAME_NICENESS = 5
FRAME_OOM_SCORE = b"600"

OPEN_FILES = 1 << 16


def die_with_parent(parent: int) -> None:
    """SIGKILL this process when its parent ends; at once if that has happened already."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def settle_zygote() -> None:
    """What frames leave behind becomes a child of this process."""
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def settle_frame(memory_limit: int) -> None:
    """A session of its own, limits, and an end with its zygote."""
    parent = os.getppid()
    os.setsid()
    die_with_parent(parent)
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    os.nice(FRAME_NICENESS)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if memory_limit:
        resource.setrlimit(resource.RLIMIT_DATA, (memory_limit, memory_limit))
    fd = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
    os.write(fd, FRAME_OOM_SCORE)
    os.close(fd)


def allow_many_files() -> None:
    """Raise this process's soft limit of open files: a live frame takes two."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def task_count() -> int:
    """Processes and threads of the machine. One cheap read."""
    fd = os.open("/proc/loadavg", os.O_RDONLY)
    try:
        return int(os.read(fd, 128).split()[3].partition(b"/")[2])
    finally:
        os.close(fd)


def children_of(pid: int) -> list[int]:
    """Direct children of a process; none when it is gone."""
    children: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            children += map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())
    except (FileNotFoundError, ProcessLookupError):
        pass
    return children


def descendants(pid: int) -> list[int]:
    found: list[int] = []
    pending = [pid]
    while pending:
        children = children_of(pending.pop())
        found += children
        pending += children
    return found


def kill_tree(pid: int) -> None:
    """SIGKILL a process and all its descendants, those that they start meanwhile included."""
    seen: set[int] = set()
    while new := [child for child in descendants(pid) if child not in seen]:
        seen.update(new)
        for victim in new:
            _kill(victim)
    _kill(pid)


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def cpu_seconds(pid: int) -> float:
    """CPU time of a process so far, all its threads; 0 when it is gone."""
    try:
        # The kernel's encoding of another process's CPU clock as a clock id (clock_getcpuclockid).
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        return 0.0


def describe_status(status: int) -> str:
    """A wait status in words."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        try:
            name = signal.Signals(number).name
        except ValueError:
            name = f"signal {number}"
        return f"killed by {name}"
    return f"exited with status {os.WEXITSTATUS(status)}"
