"""Messages to token ids and back, as one model family does it. Knows no server."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

import msgspec

from jaz_actors.backends.tokenizer_folder import TokenizerFolder, read_tokenizer_folder
from jaz_actors.messages import Message, Role


class Reply(msgspec.Struct, frozen=True):
    """What a sampled answer says.

    content:    the text that is shown: without special tokens, reasoning and the whitespace after it.
    reasoning:  [start, end) of the sampled ids that are reasoning, tags included; None where there is none.
    """

    content: str
    reasoning: tuple[int, int] | None = None


@runtime_checkable
class ChatFormat(Protocol):
    """How a model is talked to in tokens. Picklable until `load`.

    A prompt is the ids of its messages, one after the other, and those where the answer begins. `load` comes first,
    once, in a thread of its own: it may read files and take seconds. Everything else is called from any thread,
    concurrently, and must give the same for the same arguments. Raises ConfigurationError for what it cannot do.
    """

    def load(self) -> None: ...

    @property
    def vocabulary(self) -> int:
        """The model knows the ids below this one."""
        ...

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """The ids that end the assistant's answer."""
        ...

    def message_ids(self, message: Message, previous: Role | None) -> list[int]:
        """What one message contributes. `previous` is the role of the message before it, None for the first."""
        ...

    def reply_start_ids(self) -> list[int]:
        """Where the assistant's answer begins, an opened reasoning tag included where the model's format has one."""
        ...

    def reply_end_ids(self) -> list[int]:
        """What stands between the id that ended an answer and the next message."""
        ...

    def read(self, ids: Sequence[int], *, ended: bool) -> Reply:
        """The answer in sampled ids. ended: the last id is the one that stopped it."""
        ...


class HFChatFormat:
    """The format of a Hugging Face model folder: its tokenizer and its chat template.

    It reads tokenizer.json with `tokenizers` alone, since loading transformers costs every host seconds and
    hundreds of megabytes; a folder without that file is read by transformers.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._loaded: TokenizerFolder | None = None

    def __reduce__(self) -> tuple[type[HFChatFormat], tuple[Path]]:
        return HFChatFormat, (self.path,)

    def __repr__(self) -> str:
        return f"HFChatFormat({str(self.path)!r})"

    def load(self) -> None:
        if self._loaded is None:
            self._loaded = read_tokenizer_folder(self.path)

    @property
    def vocabulary(self) -> int:
        return self._ready.vocabulary

    @property
    def stop_ids(self) -> tuple[int, ...]:
        return self._ready.stop_ids

    def message_ids(self, message: Message, previous: Role | None) -> list[int]:
        whole = self._ready.template.render([message])
        return self._ready.encode(whole.removesuffix(self._start))

    def reply_start_ids(self) -> list[int]:
        return self._ready.encode(self._start)

    def reply_end_ids(self) -> list[int]:
        return []

    def read(self, ids: Sequence[int], *, ended: bool) -> Reply:
        return Reply(self._ready.decode(list(ids[:-1] if ended else ids)))

    @property
    def _start(self) -> str:
        return self._ready.template.render([Message("system", "", "seed", 0)])

    @property
    def _ready(self) -> TokenizerFolder:
        if self._loaded is None:
            self.load()
        assert self._loaded is not None
        return self._loaded
