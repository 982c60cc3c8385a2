"""One server for all that only ask it something, and ways to talk to it and to wait for it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import httpx
import pytest
import pytest_asyncio
from transformers import AutoModelForCausalLM, AutoTokenizer

from jaz_actors.backends.embedded.launch import TINY_POLICY, EmbeddedEngine

WAIT_SECONDS = 20.0


class Client:
    """Speaks to one server."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http

    async def generate(self, prompt: Any = (4, 5, 6, 7, 8), *, sampling: Any = None, **fields: Any) -> Any:
        """The answer of a request that must succeed. Generates 8 tokens greedily unless `sampling` says otherwise."""
        body = {"input_ids": prompt, "sampling_params": self.sampling(**(sampling or {})), **fields}
        answer = await self.http.post("/generate", json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    @staticmethod
    def sampling(**changes: Any) -> dict[str, Any]:
        return {"temperature": 0, "max_new_tokens": 8, "ignore_eos": True, **changes}

    async def state(self) -> dict[str, int]:
        state: dict[str, int] = (await self.http.get("/server_info")).json()["internal_states"][0]
        return state

    async def until(self, condition: Callable[[dict[str, int]], bool]) -> dict[str, int]:
        """The server's state once the condition holds."""
        deadline = time.monotonic() + WAIT_SECONDS
        while not condition(state := await self.state()):
            assert time.monotonic() < deadline, state
            await asyncio.sleep(0.01)
        return state


@pytest.fixture(scope="session")
def server() -> Iterator[EmbeddedEngine]:
    with EmbeddedEngine() as engine:
        yield engine


@pytest_asyncio.fixture
async def client(server: EmbeddedEngine) -> AsyncIterator[Client]:
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as http:
        yield Client(http)


@pytest.fixture
def connect() -> Callable[[httpx.AsyncClient], Client]:
    return Client


@pytest.fixture(scope="session")
def model() -> Any:
    return AutoModelForCausalLM.from_pretrained(TINY_POLICY, local_files_only=True).eval()


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(TINY_POLICY, local_files_only=True)
