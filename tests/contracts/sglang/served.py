"""One server as its users see it: HTTP, and nothing of ours."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import httpx
import pytest

PROMPT = [4, 5, 6, 7, 8]
WAIT_SECONDS = 20.0
LONG = 900  # tokens; enough to be under way when a busy machine gets to the next line


class Served:
    """folder: the model that it serves, where that is here; None skips what compares with it."""

    def __init__(self, url: str, folder: Path | None, *, is_ours: bool) -> None:
        self.url = url
        self.is_ours = is_ours
        self.http = httpx.Client(base_url=url, timeout=120)
        self._pool = ThreadPoolExecutor(64)
        info = self.http.get("/model_info").json()
        self._folder = folder or (Path(info["model_path"]) if Path(info["model_path"]).is_dir() else None)
        self._version = info["weight_version"]
        self._touched = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()
        self.http.close()

    @property
    def folder(self) -> Path:
        if self._folder is None:
            pytest.skip("the model's folder is not on this machine; name it with --sglang-model")
        return self._folder

    def post(self, path: str, /, **body: Any) -> httpx.Response:
        return self.http.post(path, json=body)

    def ok(self, path: str, /, **body: Any) -> Any:
        """The answer of a call that must succeed."""
        answer = self.post(path, **body)
        assert answer.status_code == 200, (path, answer.text)
        return answer.json() if answer.content else None

    def generate(self, ids: Any = PROMPT, *, sampling: dict[str, Any] | None = None, **fields: Any) -> Any:
        """Eight tokens, greedily, with their logprobs, unless told otherwise."""
        params = {"temperature": 0, "max_new_tokens": 8, "ignore_eos": True, **(sampling or {})}
        fields = {"return_logprob": True, **fields}
        return self.ok("/generate", input_ids=ids, sampling_params=params, **fields)

    def later(self, ids: Any = PROMPT, **options: Any) -> Future[Any]:
        """A request in a thread of its own."""
        return self._pool.submit(self.generate, ids, **options)

    def long(self, tokens: int = LONG, **options: Any) -> Future[Any]:
        """A request that runs for a while: it has begun when this returns."""
        asked = self.later(sampling={"max_new_tokens": tokens, "temperature": 1.0}, **options)
        self.until(lambda load: load["num_running_reqs"] > 0 or asked.done())
        return asked

    def load(self) -> dict[str, Any]:
        load: dict[str, Any] = self.http.get("/v1/loads").json()["loads"][0]
        return load

    def until(self, condition: Any) -> dict[str, Any]:
        deadline = time.monotonic() + WAIT_SECONDS
        while not condition(load := self.load()):
            assert time.monotonic() < deadline, load
            time.sleep(0.005)
        return load

    def version(self) -> str:
        return str(self.http.get("/model_info").json()["weight_version"])

    def weights(self, name: str, count: int = 100) -> list[float]:
        found = self.ok("/get_weights_by_name", name=name, truncate_size=count)
        return [float(value) for value in _flat(found)]

    def checksums(self) -> dict[str, str]:
        sums: dict[str, str] = self.ok("/weights_checker", action="checksum")["ranks"][0]["checksums"]
        return sums

    @contextlib.contextmanager
    def paused(self, mode: str) -> Iterator[None]:
        self.ok("/pause_generation", mode=mode)
        try:
            yield
        finally:
            self.ok("/continue_generation")

    @contextlib.contextmanager
    def updating(self) -> Iterator[None]:
        """Within a weight-update session, on servers that have them."""
        self._touched = True
        begun = self.post("/begin_weight_update").status_code == 200
        try:
            yield
        finally:
            if begun:
                self.ok("/end_weight_update")

    def from_disk(self, folder: Path, version: str, **fields: Any) -> Any:
        self._touched = True
        return self.ok("/update_weights_from_disk", model_path=str(folder), weight_version=version, **fields)

    def restore(self) -> None:
        """The weights and the state as found, whatever a test has left."""
        self.http.post("/continue_generation", json={})
        self.http.post("/abort_request", json={"abort_all": True})
        self.until(lambda load: load["num_running_reqs"] + load["num_waiting_reqs"] == 0)
        if self._touched:
            self.from_disk(self.folder, self._version)
            self._touched = False
        self.http.post("/flush_cache")


def lines_of(response: httpx.Response) -> Iterator[str]:
    for line in response.iter_lines():
        if line.startswith("data:"):
            yield line.removeprefix("data:").strip()


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, list):
        for item in value:
            yield from _flat(item)
    else:
        yield value


def in_thread(call: Any) -> threading.Thread:
    thread = threading.Thread(target=call)
    thread.start()
    return thread
