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
from jaz_actors.ids import InvokeId
from jaz_actors.recorders.atif import Trajectories
from jaz_actors.recorders.atif_files import write_documents
from jaz_actors.recorders.collector import Fsync
from jaz_actors.recorders.entries import RewardGiven
from jaz_actors.recorders.runs import RecordedRun
from jaz_actors.recording import Feed, RecorderSpec, shard_of
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
        self._outer: Recorder | None = None
        self._instead: Recorder | None = None
        self._feeds: dict[str, Feed] = {}
        self.recorders: tuple[str, ...] = ()

    def setup(self) -> None:
        if caller() is not None:
            raise HookActivationError("Recorder", "recorders are activated where the run is started")
        outer = (hook for hook in active_hooks() if isinstance(hook, Recorder) and hook.folder == self.folder)
        self._outer = next(outer, None)
        if self._outer is not None:
            return  # it, or `resume` around this block, records to the folder already
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
        self._outer = None
        if self._run is not None:
            try:
                if self._feeds:
                    self._run.run_through(self._end_notes())
            finally:
                self._run.end_recorders(self.recorders)
                self._run, self.recorders = None, ()

    @property
    def run_id(self) -> str:
        """Of the run that is recorded. Raises HookActivationError outside of the block."""
        recorder = self._outer or self._instead
        if recorder is not None:
            return recorder.run_id
        return self._open_run().id

    def _open_run(self) -> Run:
        if self._run is None:
            raise HookActivationError(type(self).__name__, "its block has ended, so nothing is recorded any more")
        return self._run

    def note(self, invoke_id: str, record: RewardGiven) -> None:
        """Put what is no event into the journal of an invocation. It is there for sure when the block has ended."""
        recorder = self._outer or self._instead
        if recorder is not None:
            recorder.note(invoke_id, record)
        else:
            run = self._open_run()
            name = self.recorders[shard_of(InvokeId.parse(invoke_id), len(self.recorders))]
            run.run_through(self._note(run, name, record))

    async def _note(self, run: Run, name: str, record: RewardGiven) -> None:
        feed = self._feeds.get(name)
        if feed is None:
            feed = self._feeds[name] = Feed(run.ports, name)
        await feed.note(record)

    async def _end_notes(self) -> None:
        feeds, self._feeds = self._feeds, {}
        for feed in feeds.values():
            await feed.acknowledged()


class OwnFolder(Recorder):
    """A recorder whose folder may be a temporary one, which ends with the block; None asks for that."""

    def __init__(self, folder: str | PathLike[str] | None, *, fsync: Fsync, shards: int) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="jaz-journal-") if folder is None else None
        super().__init__(self._temporary.name if self._temporary else str(folder), fsync=fsync, shards=shards)

    def read_last(self) -> None:
        """Called when all is recorded, while the folder is still there."""

    def teardown(self, error: BaseException | None) -> None:
        try:
            super().teardown(error)
            self.read_last()
        finally:
            if self._temporary is not None:
                self._temporary.cleanup()


class TrajectoryRecorder(OwnFolder):
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
        super().__init__(folder, fsync=fsync, shards=shards)
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

    def read_last(self) -> None:
        self.get_trajectories()
        self.write()
