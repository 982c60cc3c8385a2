"""What backends are asked in tests, and a chat format without a model."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from jaz_actors.ids import InvokeId
from jaz_actors.messages import Message
from jaz_actors.protocols import CompletionRequest, RetryNotice


def a_request(
    text: str = "hello there",
    *,
    path: str = "0",
    iteration: int = 0,
    on_retry: Callable[[RetryNotice], Awaitable[None]] | None = None,
) -> CompletionRequest:
    message = Message("user", text, "seed", 0)
    return CompletionRequest(InvokeId("run", path), iteration, (message,), on_retry)


class ByteFormat:
    """Every byte is an id; 256 ends an answer."""

    vocabulary = 257
    stop_ids = (256,)

    def load(self) -> None:
        pass

    def encode(self, messages: Sequence[Message]) -> list[int]:
        return [byte for message in messages for byte in message.content.encode()]

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(i for i in ids if i < 256).decode(errors="replace")
