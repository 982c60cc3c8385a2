"""How a request ends before its time: abort, a client that leaves, a server that stops."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from typing import Any

import httpx
import psutil
import pytest

from jaz_actors.backends.embedded.launch import EmbeddedEngine, EngineStartFailed

LONG = {"max_new_tokens": 1000}


@pytest.mark.asyncio
async def test_an_aborted_request_answers_with_what_it_has(client: Any) -> None:
    before = await client.state()
    task = asyncio.create_task(client.generate(sampling=LONG, rid="long", return_logprob=True))
    await client.until(lambda state: state["generated_tokens"] > before["generated_tokens"] + 3)
    assert (await client.http.post("/abort_request", json={"rid": "long"})).content == b""
    answer = await task
    assert answer["meta_info"]["finish_reason"]["type"] == "abort"
    assert 0 < len(answer["output_ids"]) < 1000
    assert answer["meta_info"]["output_token_logprobs_length"] == len(answer["output_ids"])
    assert (await client.state())["aborted"] == before["aborted"] + 1


@pytest.mark.asyncio
async def test_abort_all_reaches_running_and_waiting_and_no_others(client: Any) -> None:
    tasks = [asyncio.create_task(client.generate([4 + i, 5, 6], sampling=LONG)) for i in range(70)]  # of 64 rows
    await client.until(lambda state: state["running"] == 64 and state["waiting"] == 6)
    await client.http.post("/abort_request", json={"abort_all": True})
    answers = await asyncio.gather(*tasks)
    assert {answer["meta_info"]["finish_reason"]["type"] for answer in answers} == {"abort"}
    assert len((await client.generate())["output_ids"]) == 8


@pytest.mark.asyncio
async def test_aborting_what_does_not_run_is_no_error(client: Any) -> None:
    assert (await client.http.post("/abort_request", json={"rid": "nobody"})).status_code == 200


@pytest.mark.asyncio
async def test_a_batch_is_aborted_by_its_rid(client: Any) -> None:
    before = await client.state()
    task = asyncio.create_task(client.generate([[4, 5], [6, 7]], sampling=LONG, rid="both"))
    await client.until(lambda state: state["total_requests"] == before["total_requests"] + 2)
    await client.http.post("/abort_request", json={"rid": "both"})
    assert [answer["meta_info"]["finish_reason"]["type"] for answer in await task] == ["abort", "abort"]


@pytest.mark.asyncio
async def test_a_live_rid_cannot_be_taken_and_is_free_afterwards(client: Any) -> None:
    task = asyncio.create_task(client.generate(sampling=LONG, rid="mine"))
    await client.until(lambda state: state["running"] == 1)
    answer = await client.http.post("/generate", json={"input_ids": [4], "rid": "mine"})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == "Duplicate request ID detected: mine"
    await client.http.post("/abort_request", json={"rid": "mine"})
    await task
    await client.generate(rid="mine")


@pytest.mark.asyncio
async def test_a_client_that_leaves_stops_its_request(client: Any) -> None:
    before = await client.state()
    task = asyncio.create_task(client.generate(sampling=LONG))
    await client.until(lambda state: state["generated_tokens"] > before["generated_tokens"])
    task.cancel()
    after = await client.until(lambda state: state["running"] == 0)
    assert after["disconnected"] == before["disconnected"] + 1
    assert after["generated_tokens"] < before["generated_tokens"] + 1000


@pytest.mark.asyncio
async def test_a_client_that_leaves_its_stream_stops_its_request(client: Any) -> None:
    before = await client.state()
    body = {"input_ids": [4, 5, 6], "sampling_params": client.sampling(**LONG), "stream": True}
    async with client.http.stream("POST", "/generate", json=body) as answer:
        await anext(answer.aiter_lines())
    after = await client.until(lambda state: state["running"] == 0)
    assert after["disconnected"] == before["disconnected"] + 1
    assert after["generated_tokens"] < before["generated_tokens"] + 1000


@pytest.mark.asyncio
async def test_the_cache_is_not_flushed_while_a_request_runs(client: Any) -> None:
    task = asyncio.create_task(client.generate(sampling=LONG, rid="busy"))
    await client.until(lambda state: state["running"] == 1)
    assert "not flushed" in (await client.http.post("/flush_cache")).text
    await client.http.post("/abort_request", json={"rid": "busy"})
    await task


@pytest.mark.asyncio
async def test_a_server_that_stops_answers_everyone_first(connect: Any) -> None:
    async with EmbeddedEngine(slots=1) as engine, httpx.AsyncClient(base_url=engine.url, timeout=60) as http:
        body = {"input_ids": [4, 5, 6], "sampling_params": {**LONG, "ignore_eos": True}}
        tasks = [asyncio.create_task(http.post("/generate", json=body)) for _ in range(3)]
        await connect(http).until(lambda state: state["waiting"] == 2)
        assert engine.pid is not None
        process = psutil.Process(engine.pid)
        os.kill(engine.pid, signal.SIGTERM)
        answers = await asyncio.gather(*tasks)
        for answer in answers:
            finish = answer.json()["meta_info"]["finish_reason"]
            assert (answer.status_code, finish["type"], finish["status_code"]) == (200, "abort", 503)
        assert await asyncio.to_thread(process.wait, 10) in (0, None)


def test_a_sync_with_serves_and_leaves_nothing() -> None:
    with EmbeddedEngine() as engine:
        assert httpx.get(f"{engine.url}/health").status_code == 200
        pid = engine.pid
        assert pid is not None
    assert not psutil.pid_exists(pid)
    engine.stop()


def test_a_folder_without_a_model_is_a_typed_failure(tmp_path: Any) -> None:
    with pytest.raises(EngineStartFailed, match=r"no config\.json"), EmbeddedEngine(tmp_path):
        pass


def test_a_folder_with_a_broken_model_is_a_typed_failure(tmp_path: Any) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(EngineStartFailed, match="exit status 1"), EmbeddedEngine(tmp_path):
        pass


def test_a_start_that_takes_too_long_is_a_typed_failure() -> None:
    engine = EmbeddedEngine(start_seconds=0.05)
    with pytest.raises(EngineStartFailed, match=r"not ready after 0\.05 s"):
        engine.start()
    assert engine.pid is None


def test_the_server_ends_with_a_process_that_is_killed() -> None:
    code = (
        "from jaz_actors.backends.embedded.launch import EmbeddedEngine\n"
        "import sys, threading\n"
        "engine = EmbeddedEngine()\n"
        "starter = threading.Thread(target=engine.start)\n"
        "starter.start(); starter.join()\n"  # the thread that started it ends first, which must not end the server
        "import urllib.request\n"
        "print(engine.pid, urllib.request.urlopen(engine.url + '/health').status, flush=True)\n"
        "sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        pid, status = map(int, owner.stdout.readline().split())
        assert status == 200
        server = psutil.Process(pid)
        owner.kill()
        psutil.wait_procs([server], timeout=10)
        assert not server.is_running()
