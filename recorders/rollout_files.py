"""Rollouts as files, JSONL or Parquet: written one by one, read one by one, equal to what was written.

The name's end chooses: `.jsonl` or `.parquet` (`pip install 'jaz-actors[rollouts]'`). A file is made beside its name
with `.part` at the end and gets its name when it is complete. A `.jsonl.part` that a crash has left can be read up to
its last whole line; a `.parquet.part` cannot, since Parquet has its index at the end.

JSONL: the first line is `{"format": "jaz-actors rollouts", "schema": 1}`, every other one a rollout with the field
names of `Rollout` and `TokenTurn`; spans, versions and segments are arrays. Parquet: see `rollout_parquet`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterable, Coroutine, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Literal, Protocol, Self

import msgspec

from jaz_actors.errors import RolloutFileError
from jaz_actors.recorders.rollouts import Rollout, fault_of

FORMAT = "jaz-actors rollouts"
SCHEMA = 1
PART = ".part"
GROUP_ROLLOUTS = 256
GROUP_IDS = 1 << 20  # some 16 MiB of ids and logprobs


class _Header(msgspec.Struct, frozen=True):
    format: str
    schema: int


class _Sink(Protocol):
    def made(self, rollout: Rollout) -> Any:
        """What is to be written. Raises TypeError, ValueError or OverflowError for what the format cannot hold."""

    def write(self, made: Any, ids: int) -> None:
        """ids: how many it holds."""

    def close(self) -> None:
        """What was written is on disk when this returns."""


class RolloutWriter:
    """A file of rollouts, complete when its `with` block ends without an exception.

    group_rollouts, group_ids:  Parquet alone: a row group is written when it has so many of one of them. That is what
                                stands in memory.

    Where the block raises, what was written stays in the `.part` file. One that is there already is not overwritten.
    Raises RolloutFileError for a name, a rollout or a disk that does not do. After a rollout that does not do, others
    can be written; after a failure of the disk none can, and the block ends with that error, whatever it catches.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, group_rollouts: int = GROUP_ROLLOUTS, group_ids: int = GROUP_IDS
    ) -> None:
        self.path = Path(path)
        self._kind = _kind(self.path)
        self._part = self.path.with_name(self.path.name + PART)
        self._group = (group_rollouts, group_ids)
        self._sink: _Sink | None = None
        self._broken: Exception | None = None
        self.count = 0

    def __enter__(self) -> Self:
        try:
            file = self._part.open("xb")
        except FileExistsError:
            raise RolloutFileError(
                str(self._part), "is there already, from a writer that is at work or broke off; remove it first"
            ) from None
        except OSError as error:
            raise RolloutFileError(str(self._part), str(error)) from error
        try:
            self._sink = _JsonLines(file) if self._kind == "jsonl" else _parquet_sink(file, self._group)
        except BaseException:
            file.close()
            self._part.unlink()
            raise
        return self

    def write(self, rollout: Rollout) -> None:
        if self._sink is None:
            raise RolloutFileError(str(self.path), "is not open for writing")
        if self._broken is not None:
            raise RolloutFileError(str(self.path), f"could not be written: {self._broken}") from self._broken
        fault = fault_of(rollout)
        if fault is not None:
            raise RolloutFileError(str(self.path), f"{rollout.invoke_id} contradicts itself: {fault}")
        try:
            made = self._sink.made(rollout)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise RolloutFileError(str(self.path), f"{rollout.invoke_id} cannot be written: {error}") from error
        try:
            self._sink.write(made, rollout.said)
        except Exception as error:
            self._broken = error
            raise RolloutFileError(str(self.path), f"could not be written: {error}") from error
        self.count += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        sink, self._sink = self._sink, None
        if sink is None:
            return
        broken = self._broken
        try:
            sink.close()
            if kind is None and broken is None:
                self._part.replace(self.path)
        except Exception as failure:
            broken = broken or failure
        if broken is not None and kind is None:
            raise RolloutFileError(str(self.path), f"could not be written: {broken}") from broken


def save_rollouts(rollouts: Iterable[Rollout], path: str | os.PathLike[str]) -> int:
    """Write them all, for example of a recorder whose block has ended; how many it were. Raises RolloutFileError."""
    with RolloutWriter(path) as writer:
        for rollout in rollouts:
            writer.write(rollout)
    return writer.count


async def stream_rollouts(rollouts: AsyncIterable[Rollout], path: str | os.PathLike[str]) -> int:
    """Write each as it comes, for example from `RolloutRecorder.follow`; how many it were. Raises RolloutFileError.

    A reward that is given to a rollout after it was followed is not in the file.
    """
    with RolloutWriter(path) as writer:
        async for rollout in rollouts:
            await _to_its_end(asyncio.to_thread(writer.write, rollout))
    return writer.count


async def _to_its_end(call: Coroutine[Any, Any, None]) -> None:
    """A thread cannot be cancelled: a cancellation waits for it, so that nothing else touches what it works on."""
    task = asyncio.ensure_future(call)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # of no interest any more
        raise


def read_rollouts(path: str | os.PathLike[str]) -> Iterator[Rollout]:
    """The rollouts of a file, one after the other.

    Raises RolloutFileError for one that is not whole, cannot be read, contradicts itself or is newer than this.

    Of a `.jsonl.part`, those whose lines are whole.
    """
    file = Path(path)
    if _kind(file.with_suffix("") if file.suffix == PART else file) == "jsonl":
        return _read_lines(file)
    from jaz_actors.recorders.rollout_parquet import read_parquet

    return read_parquet(file)


def _kind(path: Path) -> Literal["jsonl", "parquet"]:
    if path.suffix == ".jsonl":
        return "jsonl"
    if path.suffix == ".parquet":
        return "parquet"
    raise RolloutFileError(str(path), "its name must end in .jsonl or .parquet")


def _parquet_sink(file: BinaryIO, group: tuple[int, int]) -> _Sink:
    from jaz_actors.recorders.rollout_parquet import ParquetSink

    return ParquetSink(file, *group)


class _JsonLines:
    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._encoder = msgspec.json.Encoder()
        self._file.write(self._encoder.encode(_Header(FORMAT, SCHEMA)) + b"\n")
        self._file.flush()

    def made(self, rollout: Rollout) -> bytes:
        return self._encoder.encode(rollout) + b"\n"

    def write(self, made: bytes, ids: int) -> None:
        # One call a line: what a crash leaves has at most one line that is not whole.
        self._file.write(made)
        self._file.flush()

    def close(self) -> None:
        with self._file:
            self._file.flush()
            os.fsync(self._file.fileno())


def _read_lines(path: Path) -> Iterator[Rollout]:
    decoder = msgspec.json.Decoder(Rollout)
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file):
                if not line.endswith(b"\n"):
                    if path.suffix == PART:
                        return
                    raise RolloutFileError(str(path), f"line {number + 1} is not whole")
                if number == 0:
                    _check(path, line)
                else:
                    yield _decoded(path, number, line, decoder)
            if file.tell() == 0 and path.suffix != PART:
                raise RolloutFileError(str(path), "is empty")
    except OSError as error:
        raise RolloutFileError(str(path), str(error)) from error


def _decoded(path: Path, number: int, line: bytes, decoder: msgspec.json.Decoder[Rollout]) -> Rollout:
    try:
        rollout = decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RolloutFileError(str(path), f"line {number + 1} is damaged: {error}") from error
    return checked(str(path), rollout)


def _check(path: Path, line: bytes) -> None:
    try:
        header = msgspec.json.decode(line, type=_Header)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RolloutFileError(str(path), f"is no file of rollouts: {error}") from error
    check_schema(str(path), header.format, header.schema)


def checked(path: str, rollout: Rollout) -> Rollout:
    fault = fault_of(rollout)
    if fault is not None:
        raise RolloutFileError(path, f"{rollout.invoke_id} contradicts itself: {fault}")
    return rollout


def check_schema(path: str, name: str, schema: int) -> None:
    if name != FORMAT:
        raise RolloutFileError(path, f"is no file of rollouts: its format is {name!r}")
    if schema != SCHEMA:
        raise RolloutFileError(path, f"has schema {schema}, and this version of jaz-actors reads {SCHEMA}")
