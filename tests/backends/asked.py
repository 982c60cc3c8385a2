"""What backends are asked in tests, and a chat format without a model."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from jaz_actors.backends.chat_format import Reply
from jaz_actors.ids import InvokeId
from jaz_actors.messages import Message, Role
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

    def message_ids(self, message: Message, previous: Role | None) -> list[int]:
        return list(message.content.encode())

    def reply_start_ids(self) -> list[int]:
        return []

    def reply_end_ids(self, *, ended: bool) -> list[int]:
        return []

    def read(self, ids: Sequence[int], *, ended: bool) -> Reply:
        shown = ids[:-1] if ended else ids
        return Reply(bytes(i for i in shown if i < 256).decode(errors="replace"))
