"""`Recorder`: what happens in a `with` block, on disk, complete, and safe before any result is delivered."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from jaz_actors.errors import ConfigurationError, HookActivationError
from jaz_actors.frames.entry import caller
from jaz_actors.hooks.base import Hook
from jaz_actors.recorders.collector import Fsync
from jaz_actors.recording import RecorderSpec
from jaz_actors.runtime import Run, current_run


class Recorder(Hook):
    """Writes every event of the invocations of its block to a journal.

    folder:    of this run alone; made if need be. The journal is in it, one folder a shard.
    fsync:     what a result waits for: "always" until its events are on disk, "interval" and "never" until they would
               survive the death of any process of the run.
    shards:    recorder processes; each tree goes to one of them.
    run_id:    the run that the journal is of; None is the session's own. Resuming a run gives the old one.

    Raises JournalError for a folder with another run's journal, or one that a process writes to. When a recorder's disk
    is full, or it cannot be reached, invocations wait, and fail with RecorderLost after a minute.
    """

    placement = "recorder"
    propagating_only = True

    def __init__(
        self, folder: str | PathLike[str], *, fsync: Fsync = "interval", shards: int = 1, run_id: str | None = None
    ) -> None:
        if fsync not in ("always", "interval", "never"):
            raise ConfigurationError("fsync", f"must be 'always', 'interval' or 'never', got {fsync!r}")
        if not isinstance(shards, int) or isinstance(shards, bool) or shards < 1:
            raise ConfigurationError("shards", f"must be a whole number of at least 1, got {shards!r}")
        self.folder = Path(folder).absolute()
        self._fsync: Fsync = fsync
        self._shards = shards
        self._run_id = run_id
        self._run: Run | None = None
        self.recorders: tuple[str, ...] = ()

    def setup(self) -> None:
        if caller() is not None:
            raise HookActivationError("Recorder", "recorders are activated where the run is started")
        run = self._run = current_run()
        names: list[str] = []
        try:
            for shard in range(self._shards):
                spec = RecorderSpec(str(self.folder / f"journal-{shard}"), self._run_id or run.id, self._fsync)
                names.append(run.start_recorder(spec))
        except BaseException:
            run.end_recorders(names)
            raise
        self.recorders = tuple(names)

    def teardown(self, error: BaseException | None) -> None:
        if self._run is not None:
            self._run.end_recorders(self.recorders)
        self._run, self.recorders = None, ()
