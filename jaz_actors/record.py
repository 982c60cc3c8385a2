"""`Recorder`: what happens in a `with` block, on disk, complete, and safe before any result is delivered."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path

from jaz_actors.errors import ConfigurationError, HookActivationError, JazError
from jaz_actors.frames.entry import caller
from jaz_actors.hooks.base import Hook, active_hooks
from jaz_actors.recorders.collector import Fsync
from jaz_actors.recording import RecorderSpec
from jaz_actors.runtime import Run, current_run

# Folders whose next Recorder is to go on with the run that is there; set by the command line.
_to_resume: dict[Path, Callable[[], Recorder]] = {}


class NothingResumed(JazError):
    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        self.folder = folder

    def __str__(self) -> str:
        return f"the program opened no Recorder({self.folder!r}), so there was nothing to go on with"


@contextmanager
def resuming(folder: Path, resume: Callable[[], Recorder]) -> Iterator[None]:
    """Within the block, the program's own `Recorder(folder)` is what `resume` gives. Raises NothingResumed."""
    folder = folder.absolute()
    _to_resume[folder] = resume
    try:
        yield
        if folder in _to_resume:
            raise NothingResumed(str(folder))
    finally:
        _to_resume.pop(folder, None)


class Recorder(Hook):
    """Writes every event of the invocations of its block to a journal.

    folder:    of this run alone; made if need be. The journal is in it, one folder a shard.
    fsync:     what a result waits for: "always" until its events are on disk, "interval" and "never" until they would
               survive the death of any process of the run.
    shards:    recorder processes; each tree goes to one of them.

    A Recorder inside `resume(folder)` with the same folder is that one. Raises JournalError for a folder with another
    run's journal, or one that a process writes to. When a recorder's disk is full, or it cannot be reached, invocations
    wait, and fail with RecorderLost after a minute.
    """

    placement = "recorder"
    propagating_only = True

    def __init__(self, folder: str | PathLike[str], *, fsync: Fsync = "interval", shards: int = 1) -> None:
        if fsync not in ("always", "interval", "never"):
            raise ConfigurationError("fsync", f"must be 'always', 'interval' or 'never', got {fsync!r}")
        if not isinstance(shards, int) or isinstance(shards, bool) or shards < 1:
            raise ConfigurationError("shards", f"must be a whole number of at least 1, got {shards!r}")
        self.folder = Path(folder).absolute()
        self._fsync: Fsync = fsync
        self._shards = shards
        self._run: Run | None = None
        self._instead: Recorder | None = None
        self.recorders: tuple[str, ...] = ()

    def setup(self) -> None:
        if caller() is not None:
            raise HookActivationError("Recorder", "recorders are activated where the run is started")
        if any(isinstance(hook, Recorder) and hook.folder == self.folder for hook in active_hooks()):
            return  # `resume` around this block records to the folder already
        resume = _to_resume.pop(self.folder, None)
        if resume is not None:
            self._instead = resume().__enter__()
            return
        run = self._run = current_run()
        names: list[str] = []
        try:
            for shard in range(self._shards):
                spec = RecorderSpec(str(self.folder / f"journal-{shard}"), run.id, self._fsync)
                names.append(run.start_recorder(spec))
        except BaseException:
            run.end_recorders(names)
            raise
        self.recorders = tuple(names)

    def teardown(self, error: BaseException | None) -> None:
        if self._instead is not None:
            self._instead.__exit__(None, error, None)
            self._instead = None
        if self._run is not None:
            self._run.end_recorders(self.recorders)
        self._run, self.recorders = None, ()
