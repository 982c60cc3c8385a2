"""Files of rollouts: equal after a round trip, streamed, complete or a `.part`, refused where they are not whole."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaz_actors.errors import ConfigurationError, RolloutFileError
from jaz_actors.messages import Segment, Span, VersionSpan
from jaz_actors.recorders.rollout_files import RolloutWriter, read_rollouts, save_rollouts, stream_rollouts
from jaz_actors.recorders.rollouts import Rollout, TokenTurn
from tests.recorders.rollout_streams import rollouts

KINDS = ("jsonl", "parquet")
finite = st.floats(allow_nan=False, allow_infinity=False)
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
whole = st.integers(-(2**63), 2**63 - 1)
ids = st.lists(st.integers(0, 2**63 - 1), max_size=4)
values = st.recursive(
    st.none() | st.booleans() | whole | finite | text, lambda v: st.lists(v) | st.dictionaries(text, v)
)


def spans(draw: st.DrawFn, kind: Any, count: int) -> tuple[Any, ...]:
    """None at all, or two that cover `count` ids."""
    if draw(st.booleans()):
        return ()
    cut = draw(st.integers(0, count))
    labels = [draw(st.none() | text) for _ in range(4)]
    return (kind(0, cut, *labels[:2]), kind(cut, count, *labels[2:]))


@st.composite
def any_turns(draw: st.DrawFn) -> tuple[TokenTurn, ...]:
    """Sound ones, with every value that a field can have."""
    made: list[TokenTurn] = []
    for iteration in sorted(draw(st.sets(st.integers(0, 2**63 - 1), max_size=3))):
        output = draw(ids)
        count = len(output)
        made.append(
            TokenTurn(
                iteration,
                draw(st.integers(0, made[-1].length)) if made else 0,
                draw(ids),
                output,
                draw(st.lists(finite, min_size=count, max_size=count)),
                spans(draw, VersionSpan, count),
                spans(draw, Segment, count),
                draw(st.sampled_from(["stop", "length", "abort", "content_filter", "unknown"])),
                draw(st.none() | st.integers(0, count).map(lambda end: Span(end // 2, end))),
                draw(st.booleans()),
                draw(text),
                draw(st.dictionaries(text, values, max_size=3)),
            )
        )
    return tuple(made)


any_rollouts = st.builds(
    Rollout,
    text,
    st.none() | text,
    whole,
    any_turns(),
    st.sampled_from(["completed", "raised", "aborted", "failed", "unfinished"]),
    st.none() | whole,
    st.none() | text,
    st.none() | text,
    st.none() | finite,
    finite,
    st.none() | finite,
)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40, deadline=None)
@given(st.lists(any_rollouts | rollouts(), max_size=5), st.integers(1, 3))
def test_what_is_read_equals_what_was_written(kind: str, made: list[Rollout], group: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"r.{kind}"
        with RolloutWriter(path, group_rollouts=group) as writer:
            for rollout in made:
                writer.write(rollout)
        assert list(read_rollouts(path)) == made
        assert [p.name for p in Path(folder).iterdir()] == [path.name]


def numbered(count: int, length: int = 3) -> list[Rollout]:
    turn = TokenTurn(0, 0, [1, 2], list(range(length)), [-0.5] * length)
    return [Rollout(f"r:{n}", None, 1, (turn,), "completed", reward=float(n)) for n in range(count)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_has_its_name_only_when_it_is_complete(kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"r.{kind}"
    with RolloutWriter(path) as writer:
        writer.write(numbered(1)[0])
        assert not path.exists()
    assert path.exists()
    with pytest.raises(KeyError), RolloutWriter(path) as writer:
        raise KeyError
    assert len(list(read_rollouts(path))) == 1
    with pytest.raises(RolloutFileError, match="already"):
        save_rollouts(numbered(1), path)
    (tmp_path / f"r.{kind}.part").unlink()
    assert save_rollouts(numbered(2), path) == 2
    assert list(read_rollouts(path)) == numbered(2)


CRASHES = """
import os, signal, sys
from tests.recorders.test_rollout_files import numbered
from jaz_actors.recorders.rollout_files import RolloutWriter
with RolloutWriter(sys.argv[1]) as writer:
    for rollout in numbered(5):
        writer.write(rollout)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_lines_of_a_writer_that_was_killed_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", CRASHES, path], env=environment, check=False)
    assert done.returncode == -signal.SIGKILL
    part = tmp_path / "r.jsonl.part"
    assert list(read_rollouts(part)) == numbered(5)
    part.write_bytes(part.read_bytes()[:-7])
    assert list(read_rollouts(part)) == numbered(4)
    part.rename(path)
    with pytest.raises(RolloutFileError, match="line 6 is not whole"):
        list(read_rollouts(path))


def test_rows_are_grouped_by_rollouts_and_by_ids(tmp_path: Path) -> None:
    for options, groups in (({"group_rollouts": 4}, [4, 4, 2]), ({"group_ids": 25}, [5, 5]), ({}, [10])):
        with RolloutWriter(tmp_path / "r.parquet", **options) as writer:
            for rollout in numbered(10):
                writer.write(rollout)
        with pyarrow.parquet.ParquetFile(tmp_path / "r.parquet") as file:
            metadata = file.metadata
            assert [metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)] == groups


@pytest.mark.parametrize("kind", KINDS)
def test_reading_does_not_hold_the_file(kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"r.{kind}"
    save_rollouts(numbered(100), path)
    reading = read_rollouts(path)
    assert next(reading).invoke_id == "r:0"
    assert next(reading).invoke_id == "r:1"
    reading.close()  # type: ignore[attr-defined]


def nested(depth: int) -> list[Any]:
    made: list[Any] = []
    for _ in range(depth):
        made = [made]
    return made


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        ("jsonl", {"error": "\ud800"}),
        ("parquet", {"error": "\ud800"}),
        ("parquet", {"turns": (TokenTurn(0, 0, [2**64], [], []),)}),
        ("jsonl", {"turns": (TokenTurn(0, 0, [], [1], [float("nan")]),)}),
        ("parquet", {"turns": (TokenTurn(0, 0, [], [1], [float("-inf")]),)}),
        ("jsonl", {"turns": (TokenTurn(0, 0, [], [1], []),)}),
        ("parquet", {"turns": (TokenTurn(0, 7, [], [], []),)}),
        ("parquet", {"turns": (TokenTurn(1, 0, [], [], []), TokenTurn(1, 0, [], [], []))}),
        ("jsonl", {"turns": (TokenTurn(0, 0, [], [1], [-0.5], (VersionSpan(0, 2, "1", "1"),)),)}),
        ("jsonl", {"reward": float("nan")}),
        ("parquet", {"status": "bogus"}),
        ("jsonl", {"turns": (TokenTurn(0, 0, [], [], [], sampling={"x": nested(100_000)}),)}),
    ],
)
def test_what_cannot_be_written_is_named_and_the_rest_is_kept(kind: str, wrong: dict[str, Any], tmp_path: Path) -> None:
    bad = msgspec.structs.replace(numbered(1)[0], invoke_id="r:bad", **wrong)
    with RolloutWriter(tmp_path / f"r.{kind}") as writer:
        writer.write(numbered(1)[0])
        with pytest.raises(RolloutFileError, match="r:bad"):
            writer.write(bad)
    assert list(read_rollouts(tmp_path / f"r.{kind}")) == numbered(1)


def test_files_of_another_kind_or_a_newer_schema_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RolloutFileError, match=r"\.jsonl or \.parquet"):
        RolloutWriter(tmp_path / "r.csv")
    lines, rows = tmp_path / "r.jsonl", tmp_path / "r.parquet"
    for content, why in (
        (b"", "empty"),
        (b'{"a": 1}\n', "no file of rollouts"),
        (b'{"format": "other", "schema": 1}\n', "no file of rollouts"),
        (b'{"format": "jaz-actors rollouts", "schema": 2}\n', "schema 2"),
        (b'{"format": "jaz-actors rollouts", "schema": 1}\n{"invoke_id": 3}\n', "line 2 is damaged"),
    ):
        lines.write_bytes(content)
        with pytest.raises(RolloutFileError, match=why):
            list(read_rollouts(lines))
    with pytest.raises(RolloutFileError):
        list(read_rollouts(tmp_path / "none.jsonl"))
    with pytest.raises(RolloutFileError):
        list(read_rollouts(tmp_path / "none.parquet"))
    save_rollouts(numbered(3), rows)
    table = pyarrow.parquet.read_table(rows)
    pyarrow.parquet.write_table(table.replace_schema_metadata({}), rows)
    with pytest.raises(RolloutFileError, match="no file of rollouts"):
        list(read_rollouts(rows))
    pyarrow.parquet.write_table(
        table.replace_schema_metadata({"jaz_actors.format": "jaz-actors rollouts", "jaz_actors.schema": "2"}), rows
    )
    with pytest.raises(RolloutFileError, match="schema 2"):
        list(read_rollouts(rows))
    save_rollouts(numbered(3), rows)
    rows.write_bytes(rows.read_bytes()[:-9])
    with pytest.raises(RolloutFileError, match="damaged"):
        list(read_rollouts(rows))


def test_without_pyarrow_parquet_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigurationError, match=r"jaz-actors\[rollouts\]"):
        save_rollouts(numbered(1), tmp_path / "r.parquet")
    assert list(tmp_path.iterdir()) == []
    save_rollouts(numbered(1), tmp_path / "r.jsonl")
    assert list(read_rollouts(tmp_path / "r.jsonl")) == numbered(1)


@pytest.mark.parametrize("kind", KINDS)
def test_rollouts_are_streamed_as_they_come(kind: str, tmp_path: Path) -> None:
    async def comes() -> AsyncIterator[Rollout]:
        for rollout in numbered(3):
            await asyncio.sleep(0)
            yield rollout

    assert asyncio.run(stream_rollouts(comes(), tmp_path / f"r.{kind}")) == 3
    assert list(read_rollouts(tmp_path / f"r.{kind}")) == numbered(3)


def stored(path: Path) -> tuple[int, list[dict[str, Any]]]:
    """Bytes of the file, and its rows as anyone else would read them."""
    if path.suffix == ".parquet":
        return path.stat().st_size, pyarrow.parquet.read_table(path).to_pylist()
    return path.stat().st_size, [msgspec.json.decode(line) for line in path.read_bytes().splitlines()[1:]]


@pytest.mark.parametrize("kind", KINDS)
@given(rollout=rollouts())
@settings(max_examples=20, deadline=None)
def test_a_row_holds_each_id_that_was_said_once(kind: str, rollout: Rollout) -> None:
    with tempfile.TemporaryDirectory() as folder:
        save_rollouts([rollout], Path(folder, f"x.{kind}"))
        _, (row,) = stored(Path(folder, f"x.{kind}"))
    assert sum(len(turn["new_ids"]) + len(turn["output_ids"]) for turn in row["turns"]) == rollout.said


@pytest.mark.parametrize("kind", KINDS)
def test_many_turns_cost_what_was_said(kind: str, tmp_path: Path) -> None:
    """128 turns, each with 40 new ids and 8 sampled: a file as large as 8 times that of 16, and no more."""
    sizes = {}
    for turns in (16, 128):
        made = tuple(
            TokenTurn(n, n * 48, [(n * 7 + i) % 50_000 for i in range(40)], [n] * 8, [-n / 7] * 8) for n in range(turns)
        )
        path = tmp_path / f"{turns}.{kind}"
        save_rollouts([Rollout("r:0", None, 1, made, "completed")], path)
        sizes[turns] = stored(path)[0]
    assert sizes[128] <= 1.1 * 8 * sizes[16]


FULL_DISK = """
import resource, signal, sys
from tests.recorders.test_rollout_files import numbered
from jaz_actors.errors import RolloutFileError
from jaz_actors.recorders.rollout_files import RolloutWriter
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
refused = 0
try:
    with RolloutWriter(sys.argv[1], group_rollouts=1) as writer:
        for number, rollout in enumerate(numbered(12, 50)):
            most = 1500 if number == 5 else resource.RLIM_INFINITY
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))
            try:
                writer.write(rollout)
            except RolloutFileError:
                refused += 1
except RolloutFileError:
    print(refused, writer.count)
"""


@pytest.mark.parametrize("kind", KINDS)
def test_after_a_failure_of_the_disk_nothing_is_published(kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"r.{kind}"
    save_rollouts(numbered(1), path)
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, path], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["7", "5"]
    assert list(read_rollouts(path)) == numbered(1)


@pytest.mark.parametrize("kind", KINDS)
def test_cancelling_a_stream_waits_for_the_write_and_is_a_cancellation(kind: str, tmp_path: Path) -> None:
    async def many() -> AsyncIterator[Rollout]:
        for rollout in numbered(10_000, 400):
            yield rollout

    async def main() -> None:
        for number in range(6):
            path = tmp_path / f"{number}.{kind}"
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(stream_rollouts(many(), path), 0.02 * (number + 1))
            assert not path.exists()

    asyncio.run(main())


def test_a_flipped_bit_in_a_page_is_found(tmp_path: Path) -> None:
    path = tmp_path / "r.parquet"
    save_rollouts(numbered(20, 200), path)
    whole = path.read_bytes()
    page = pyarrow.parquet.ParquetFile(path).metadata.row_group(0).column(5)
    at = page.data_page_offset + page.total_compressed_size - 3
    path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    with pytest.raises(RolloutFileError, match="damaged"):
        list(read_rollouts(path))


def test_a_name_that_is_no_file_is_refused() -> None:
    for name in ("/", "", "."):
        with pytest.raises(RolloutFileError):
            RolloutWriter(name)
