"""What updates of the weights refuse, and that a refusal changes nothing; what the token log says."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import os
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from jaz_actors.backends.embedded.launch import EmbeddedEngine
from jaz_actors.backends.embedded.safe_unpickler import PayloadRefused, load_pickled

NORM = "model.norm.weight"


class Reduced:
    """Pickles as a call."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self._call = (function, arguments)

    def __reduce__(self) -> Any:
        return self._call


def view_beyond_its_storage() -> bytes:
    """A tensor of 4 values that says it has a million."""
    data = pickle.dumps(torch.arange(4.0), protocol=2)
    assert data.count(b"K\x04\x85") == 1  # its size
    return data.replace(b"K\x04\x85", b"J\x40\x42\x0f\x00\x85")


HOSTILE: dict[str, bytes] = {
    "a command": pickle.dumps(Reduced(os.system, "exit 1")),
    "code": pickle.dumps(Reduced(eval, "1 + 1")),
    "code within a list": pickle.dumps([("a", Reduced(exec, "x = 1"))]),
    "an attribute of something allowed": b"ctorch\n_C._cuda_init\n.",
    "a dotted way out": b"ccollections\nOrderedDict.__init__.__globals__\n.",
    "torch's own loader": pickle.dumps(Reduced(torch.load, "/etc/passwd")),
    "a checkpoint that is code": pickle.dumps(
        Reduced(torch.storage._load_from_bytes, pickle.dumps(Reduced(eval, "1")))
    ),
    "a reference to outside": b"Psomething\n.",
    "a view beyond its storage": view_beyond_its_storage(),
    "nothing": b"",
    "no pickle": b"hello",
    "half a pickle": pickle.dumps([("a", torch.zeros(100))])[:-40],
}


@pytest.mark.parametrize("case", HOSTILE)
def test_what_is_no_tensor_by_value_is_refused(case: str) -> None:
    with pytest.raises(PayloadRefused):
        load_pickled(HOSTILE[case])


def test_a_view_must_lie_within_its_storage() -> None:
    with pytest.raises(PayloadRefused, match="larger than its storage"):
        load_pickled(view_beyond_its_storage())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool])
@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_tensors_come_back_as_they_were(dtype: torch.dtype, protocol: int) -> None:
    base = torch.arange(24).to(dtype)
    sent = [base, base.reshape(2, 3, 4), base[2:20:3], base.reshape(4, 6).t(), torch.empty(0, 3, dtype=dtype)]
    found = load_pickled(pickle.dumps(sent, protocol=protocol))
    for ours, theirs in zip(sent, found, strict=True):
        assert ours.dtype == theirs.dtype
        assert torch.equal(ours, theirs)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_damaged_pickle_is_read_or_refused(data: st.DataObject) -> None:
    whole = bytearray(pickle.dumps([("a", torch.arange(6.0).reshape(2, 3))]))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(PayloadRefused):
        load_pickled(bytes(whole))


def payload(value: Any) -> list[str]:
    return [base64.b64encode(pickle.dumps(value)).decode()]


async def call(client: Any, path: str, **body: Any) -> httpx.Response:
    answer: httpx.Response = await client.http.post(path, json=body)
    return answer


async def norm(client: Any) -> list[float]:
    values: list[float] = (await call(client, "/get_weights_by_name", name=NORM)).json()
    return values


@pytest.fixture
def bad() -> dict[str, tuple[list[str], str | None]]:
    good = (NORM, torch.zeros(128))
    return {
        "a wrong shape behind a good one": (payload([good, ("model.embed_tokens.weight", torch.zeros(3, 128))]), None),
        "integers": (payload([(NORM, torch.zeros(128, dtype=torch.int64))]), None),
        "no list": (payload({"a": 1}), None),
        "no names": (payload([torch.zeros(128)]), None),
        "no base64": (["***"], None),
        "an unknown format": (payload([good]), "bogus"),
        "a bucket that is none": (payload([good]), "flattened_bucket"),
        "several ranks": (payload([good]) * 2, None),
    }


@pytest.mark.asyncio
async def test_a_refused_update_changes_nothing(client: Any, bad: dict[str, tuple[list[str], str | None]]) -> None:
    before = await norm(client)
    assert (await call(client, "/begin_weight_update")).status_code == 200
    try:
        for case, (sent, load_format) in bad.items():
            answer = await call(
                client,
                "/update_weights_from_tensor",
                serialized_named_tensors=sent,
                load_format=load_format,
                weight_version="bad",
            )
            assert (answer.status_code, answer.json()["success"]) == (400, False), case
            assert answer.json()["message"], case
    finally:
        await call(client, "/end_weight_update")
    assert await norm(client) == before
    assert (await client.http.get("/model_info")).json()["weight_version"] == "default"


@pytest.mark.asyncio
async def test_an_unknown_name_is_ignored(client: Any) -> None:
    before = await norm(client)
    await call(client, "/begin_weight_update")
    answer = await call(
        client, "/update_weights_from_tensor", serialized_named_tensors=payload([("none.such", torch.zeros(1))])
    )
    await call(client, "/end_weight_update")
    assert answer.json()["success"]
    assert await norm(client) == before


@pytest.mark.asyncio
async def test_flushing_while_requests_are_held_is_refused_and_nothing_is_changed(client: Any) -> None:
    asked = asyncio.create_task(client.generate(sampling={"max_new_tokens": 300}))
    await client.until(lambda state: state["running"] > 0)
    await call(client, "/pause_generation", mode="in_place")
    await call(client, "/begin_weight_update")
    try:
        before = await norm(client)
        answer = await call(
            client, "/update_weights_from_tensor", serialized_named_tensors=payload([(NORM, torch.zeros(128))])
        )
        assert answer.status_code == 400
        assert "flush_cache" in answer.json()["message"]
        assert await norm(client) == before
    finally:
        await call(client, "/end_weight_update")
        await call(client, "/continue_generation")
    assert len((await asked)["output_ids"]) == 300


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/pause_generation", {"mode": "bogus"}),
        ("/update_weights_from_disk", {}),
        ("/get_weights_by_name", {"name": 3}),
        ("/weights_checker", {"action": "bogus"}),
        ("/init_weights_update_group", {"master_address": "127.0.0.1"}),
        ("/update_weights_from_distributed", {"names": [], "dtypes": [], "shapes": [], "group_name": "none"}),
        ("/destroy_weights_update_group", {"group_name": "none"}),
    ],
)
async def test_a_call_that_asks_for_nothing_possible_is_refused(client: Any, path: str, body: dict[str, Any]) -> None:
    answer = await call(client, path, **body)
    assert answer.status_code == 400
    assert answer.json()["message"]
    assert len((await client.generate())["output_ids"]) == 8


@pytest.fixture
def logging_engine(tmp_path: Path) -> Iterator[tuple[EmbeddedEngine, Path]]:
    log = tmp_path / "tokens.jsonl"
    with EmbeddedEngine(slots=4, token_log=log, weight_version="first", context_length=512) as engine:
        yield engine, log


@pytest.mark.asyncio
async def test_the_log_has_every_sequence_and_whose_weights_sampled_what(
    logging_engine: tuple[EmbeddedEngine, Path], connect: Callable[[httpx.AsyncClient], Any]
) -> None:
    """Twenty requests at once, four at a time, labels changing, some aborted, some left by their clients."""
    engine, log = logging_engine
    async with httpx.AsyncClient(base_url=engine.url, timeout=60) as http:
        client = connect(http)

        async def ask(number: int) -> Any:
            sampling = {"max_new_tokens": 60, "temperature": 1.0}
            return await client.generate(
                [4, 5, 6 + number], sampling=sampling, rid=f"r{number:02}", return_logprob=True
            )

        tasks = [asyncio.create_task(ask(number)) for number in range(20)]
        for label in ("second", "third", "fourth"):
            await asyncio.sleep(0.05)
            await call(client, "/update_weight_version", new_version=label, abort_all_requests=False)
        await call(client, "/abort_request", rid="r18")
        tasks[19].cancel()
        answers = await asyncio.gather(*tasks[:19])
        await client.until(lambda state: state["running"] + state["waiting"] == 0)
        lines = {line["rid"]: line for line in map(msgspec.json.decode, log.read_bytes().splitlines())}
        assert sorted(lines) == [f"r{number:02}" for number in range(20)]
        labels = set()
        for number, answer in enumerate(answers):
            line, meta = lines[f"r{number:02}"], answer["meta_info"]
            assert line["output_ids"] == answer["output_ids"]
            assert line["logprobs"] == pytest.approx([row[0] for row in meta["output_token_logprobs"]])
            assert line["versions"] == meta["weight_versions"]
            assert line["prompt_ids"] == [4, 5, 6 + number]
            ends = [span["end"] for span in line["versions"]]
            assert [span["start"] for span in line["versions"]] == [0, *ends[:-1]][: len(ends)]
            assert (ends[-1] if ends else 0) == len(line["output_ids"])
            labels |= {span["version"] for span in line["versions"]}
        assert "fourth" in labels
        assert len(labels) > 1
        assert lines["r19"]["finish_reason"]["type"] == "abort"


def test_a_checkpoint_in_a_pickle_is_no_way_in() -> None:
    """The storage within a tensor's pickle is a file of torch's own, which could hold any pickle."""
    inner = io.BytesIO()
    torch.save({"a": Reduced(eval, "1")}, inner, _use_new_zipfile_serialization=False)
    with pytest.raises(PayloadRefused):
        load_pickled(pickle.dumps(Reduced(torch.storage._load_from_bytes, inner.getvalue())))
