"""`Recorder`: what happens in a `with` block, on disk, complete, and safe before any result is delivered."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

from jaz_actors.errors import ConfigurationError, HookActivationError, JazError
from jaz_actors.frames.entry import caller
from jaz_actors.hooks.base import Hook, active_hooks
from jaz_actors.recorders.atif import Trajectories
from jaz_actors.recorders.atif_files import write_documents
from jaz_actors.recorders.collector import Fsync
from jaz_actors.recorders.runs import RecordedRun
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


class TrajectoryRecorder(Recorder):
    """A recorder that leaves ATIF v1.7 documents, one a root, children embedded; failed and killed ones too.

    path:       the file of a single root's document; several go beside it as STEM.ROOT.json. None writes none.
    folder:     of the journal, see `Recorder`; None is a temporary one, which ends with the block.
    full_prompt_ids:  write each query's whole prompt in token ids, instead of what is new in it.

    Written when the block ends, and by `write()` at any time while invocations run.
    """

    def __init__(
        self,
        path: str | PathLike[str] | None = None,
        *,
        folder: str | PathLike[str] | None = None,
        fsync: Fsync = "interval",
        shards: int = 1,
        full_prompt_ids: bool = False,
    ) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="jaz-journal-") if folder is None else None
        super().__init__(self._temporary.name if self._temporary else str(folder), fsync=fsync, shards=shards)
        self.path = None if path is None else Path(path).absolute()
        self._full_prompt_ids = full_prompt_ids
        self._documents: list[dict[str, Any]] = []

    def get_trajectories(self) -> list[dict[str, Any]]:
        """The documents as of now; after the block, as they were at its end."""
        if any(self.folder.glob("journal-*")):
            trajectories = Trajectories(full_prompt_ids=self._full_prompt_ids)
            for event in RecordedRun(self.folder).events():
                trajectories.add(event)
            self._documents = trajectories.documents()
        return self._documents

    def write(self) -> list[Path]:
        """Write the documents as of now; each file is replaced whole."""
        return [] if self.path is None else write_documents(self.path, self.get_trajectories())

    def teardown(self, error: BaseException | None) -> None:
        super().teardown(error)
        self.get_trajectories()
        self.write()
        if self._temporary is not None:
            self._temporary.cleanup()
