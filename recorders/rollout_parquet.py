"""Rollouts as rows of Parquet: one row a rollout, its turns a list of structs. Needs pyarrow.

The columns are the fields of `Rollout` and `TokenTurn`; spans are structs of `start` and `end`, `sampling` is JSON
text. Key-value metadata of the schema: `jaz_actors.format` and `jaz_actors.schema`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from jaz_actors.errors import ConfigurationError, RolloutFileError
from jaz_actors.messages import Segment, Span, VersionSpan
from jaz_actors.recorders.rollout_files import FORMAT, SCHEMA, check_schema, checked
from jaz_actors.recorders.rollouts import Rollout, TokenTurn

_FORMAT_KEY, _SCHEMA_KEY = b"jaz_actors.format", b"jaz_actors.schema"
_READ_ROWS = 32


class ParquetSink:
    """Row groups of `group_rollouts` rows, or as many as have `group_ids` ids, if those are fewer."""

    def __init__(self, file: BinaryIO, group_rollouts: int, group_ids: int) -> None:
        arrow, parquet = _pyarrow()
        self._arrow = arrow
        self._file = file
        self._schema = _schema(arrow)
        self._writer = parquet.ParquetWriter(file, self._schema, compression="zstd", write_page_checksum=True)
        self._limits = (group_rollouts, group_ids)
        self._batches: list[Any] = []
        self._ids = 0

    def made(self, rollout: Rollout) -> Any:
        # Columns at once: smaller than the rollout, and what does not fit them fails here and not with its group.
        return self._arrow.RecordBatch.from_pylist([_row(rollout)], schema=self._schema)

    def write(self, made: Any, ids: int) -> None:
        self._batches.append(made)
        self._ids += ids
        if len(self._batches) >= self._limits[0] or self._ids >= self._limits[1]:
            self._flush()

    def _flush(self) -> None:
        batches, self._batches, self._ids = self._batches, [], 0
        if batches:
            self._writer.write_table(self._arrow.Table.from_batches(batches).combine_chunks())

    def close(self) -> None:
        with self._file:
            try:
                self._flush()
            finally:
                self._writer.close()
            self._file.flush()
            os.fsync(self._file.fileno())


def read_parquet(path: Path) -> Iterator[Rollout]:
    """Raises RolloutFileError, ConfigurationError without pyarrow."""
    arrow, parquet = _pyarrow()
    try:
        with parquet.ParquetFile(path, page_checksum_verification=True) as file:
            metadata = file.schema_arrow.metadata or {}
            name, schema = metadata.get(_FORMAT_KEY, b"unknown"), metadata.get(_SCHEMA_KEY, b"0")
            check_schema(str(path), name.decode(), int(schema))
            for group in range(file.num_row_groups):  # a batch that spans several would hold all of them
                for batch in file.iter_batches(batch_size=_READ_ROWS, row_groups=[group]):
                    for row in batch.to_pylist():
                        yield checked(str(path), _rollout(row))
    except (
        OSError,
        RecursionError,
        KeyError,
        TypeError,
        ValueError,
        arrow.ArrowException,
        msgspec.MsgspecError,
    ) as error:
        raise RolloutFileError(str(path), f"is damaged or unfinished: {error}") from error


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ConfigurationError("Parquet", "needs pyarrow: pip install 'jaz-actors[rollouts]'") from error
    return pyarrow, pyarrow.parquet


def _schema(arrow: Any) -> Any:
    whole, text, real = arrow.int64(), arrow.string(), arrow.float64()

    def span(*names: str) -> Any:
        return arrow.struct([("start", whole), ("end", whole), *((name, text) for name in names)])

    turn = [
        ("iteration", whole),
        ("shared", whole),
        ("new_ids", arrow.list_(whole)),
        ("output_ids", arrow.list_(whole)),
        ("logprobs", arrow.list_(real)),
        ("versions", arrow.list_(span("oldest", "newest"))),
        ("segments", arrow.list_(span("version_at_submit", "version_at_return"))),
        ("finish_reason", text),
        ("reasoning", span()),
        ("edited", arrow.bool_()),
        ("model", text),
        ("sampling", text),
    ]
    columns = [
        ("invoke_id", text),
        ("parent_id", text),
        ("depth", whole),
        ("turns", arrow.list_(arrow.struct(turn))),
        ("status", text),
        ("parent_iteration", whole),
        ("error", text),
        ("refused", text),
        ("reward", real),
        ("started_at", real),
        ("ended_at", real),
    ]
    return arrow.schema(columns, metadata={_FORMAT_KEY: FORMAT, _SCHEMA_KEY: str(SCHEMA)})


def _row(rollout: Rollout) -> dict[str, Any]:
    row = {name: getattr(rollout, name) for name in Rollout.__struct_fields__}
    row["turns"] = [_turn_row(turn) for turn in rollout.turns]
    return row


def _turn_row(turn: TokenTurn) -> dict[str, Any]:
    row = {name: getattr(turn, name) for name in TokenTurn.__struct_fields__}
    row["versions"] = [msgspec.structs.asdict(span) for span in turn.versions]
    row["segments"] = [msgspec.structs.asdict(segment) for segment in turn.segments]
    row["reasoning"] = None if turn.reasoning is None else msgspec.structs.asdict(turn.reasoning)
    row["sampling"] = msgspec.json.encode(turn.sampling).decode()
    return row


def _rollout(row: dict[str, Any]) -> Rollout:
    return Rollout(**row | {"turns": tuple(map(_turn, row["turns"]))})


def _turn(row: dict[str, Any]) -> TokenTurn:
    made = {
        "versions": tuple(VersionSpan(**span) for span in row["versions"]),
        "segments": tuple(Segment(**segment) for segment in row["segments"]),
        "reasoning": None if row["reasoning"] is None else Span(**row["reasoning"]),
        "sampling": msgspec.json.decode(row["sampling"]),
    }
    return TokenTurn(**row | made)
