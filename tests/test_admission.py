"""Places for running invocations: order, waiting, cancellation; and memory shared between processes."""

from __future__ import annotations

import asyncio
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaz_actors.admission import Admission
from jaz_actors.errors import ConfigurationError, DecodeError
from jaz_actors.payload import SharedBuffer
from jaz_actors.shared import SHARE_FROM_BYTES, SharedBuffers, map_shared


@given(st.integers(1, 5), st.lists(st.tuples(st.booleans(), st.booleans()), max_size=25))
def test_the_cap_holds_and_every_newcomer_gets_a_place(limit: int, plans: list[tuple[bool, bool]]) -> None:
    """Each plan is (waits for a child meanwhile, is cancelled while queued)."""

    async def scenario() -> None:
        admission = Admission(limit)
        admitted = 0

        async def one(waits: bool) -> None:
            nonlocal admitted
            async with admission.place() as place:
                admitted += 1
                assert admission.running <= limit
                await asyncio.sleep(0)
                if waits:
                    place.set_waiting(True)
                    await asyncio.sleep(0)
                    place.set_waiting(False)
                await asyncio.sleep(0)

        tasks = [asyncio.ensure_future(one(waits)) for waits, _ in plans]
        await asyncio.sleep(0)
        cancelled = [task for task, (_, cancel) in zip(tasks, plans, strict=True) if cancel and task.cancel()]
        await asyncio.gather(*tasks, return_exceptions=True)
        assert admitted >= len(tasks) - len(cancelled)
        assert (admission.running, admission.queued) == (0, 0)

    asyncio.run(scenario())


def test_a_cap_below_one_is_refused() -> None:
    with pytest.raises(ConfigurationError):
        Admission(0)


def _share(buffers: SharedBuffers, array: np.ndarray, owner: str) -> SharedBuffer:
    shared = buffers.share(pickle.PickleBuffer(array), owner)
    assert isinstance(shared, SharedBuffer)
    return shared


def test_small_buffers_stay_in_place_and_big_ones_are_written_once() -> None:
    buffers = SharedBuffers()
    assert buffers.share(pickle.PickleBuffer(b"abc"), "0") == b"abc"
    array = np.arange(SHARE_FROM_BYTES)
    first = _share(buffers, array, "0")
    assert _share(buffers, array, "1") == first
    array[0] = 7
    changed = _share(buffers, array, "2")
    assert changed != first
    assert map_shared(first)[:8].tobytes() == np.int64(0).tobytes()
    assert map_shared(changed)[:8].tobytes() == np.int64(7).tobytes()
    for owner in "012":
        buffers.release(owner)


def test_a_mapping_is_read_only_and_outlives_its_holder() -> None:
    buffers = SharedBuffers()
    shared = _share(buffers, np.ones(SHARE_FROM_BYTES), "0")
    view = map_shared(shared)
    with pytest.raises(TypeError):
        view[0] = 1
    buffers.release("0")
    assert view.nbytes == shared.nbytes
    with pytest.raises(DecodeError, match="no longer holds"):
        map_shared(shared)


def test_a_buffer_is_held_until_its_last_owner_lets_go() -> None:
    buffers = SharedBuffers()
    array = np.ones(SHARE_FROM_BYTES)
    shared = _share(buffers, array, "0")
    assert _share(buffers, array, "1") == shared
    buffers.release("0")
    assert map_shared(shared).nbytes == array.nbytes
    buffers.release("1")
    with pytest.raises(DecodeError, match="no longer holds"):
        map_shared(shared)


def test_another_machines_buffer_is_refused_until_it_is_brought_here() -> None:
    buffers = SharedBuffers()
    foreign = SharedBuffer("another-machine", 1, 3, 0, 5)
    with pytest.raises(DecodeError, match="another machine"):
        map_shared(foreign)
    assert buffers.held(foreign, "0") is None
    held = buffers.place(foreign, b"12345", "0")
    assert bytes(map_shared(held)) == b"12345"
    again = buffers.held(foreign, "1")
    assert again == held
    buffers.release("0")
    buffers.release("1")
