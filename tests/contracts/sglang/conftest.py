"""A server to put the contract to: the embedded engine, or the one that --sglang-url names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from jaz_actors.backends.embedded.launch import TINY_POLICY, EmbeddedEngine
from tests.contracts.sglang.served import Served
from tests.contracts.sglang.teacher import Teacher


@pytest.fixture(scope="session")
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    url = request.config.getoption("--sglang-url")
    if url is not None:
        model = request.config.getoption("--sglang-model")
        with Served(url, Path(model) if model else None, is_ours=False) as found:
            yield found
        return
    with EmbeddedEngine() as engine, Served(engine.url, TINY_POLICY, is_ours=True) as found:
        yield found


@pytest.fixture(autouse=True)
def _left_as_found(served: Served) -> Iterator[None]:
    yield
    served.restore()


@pytest.fixture(scope="session")
def teacher(served: Served) -> Teacher:
    return Teacher(served.folder)
