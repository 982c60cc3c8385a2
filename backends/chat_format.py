"""Messages to token ids and back, as one model family does it. Knows no server."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from jaz_actors.backends.tokenizer_folder import TokenizerFolder, read_tokenizer_folder
from jaz_actors.messages import Message


@runtime_checkable
class ChatFormat(Protocol):
    """How a model is talked to in tokens. Picklable until `load`.

    `load` comes first, once, in a thread of its own: it may read files and take seconds. Everything else is
    called from any thread, concurrently, and must give the same for the same arguments. Raises
    ConfigurationError for what it cannot do.
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

    def encode(self, messages: Sequence[Message]) -> list[int]:
        """The whole prompt, up to where the assistant's answer begins."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text that a reader sees, without special tokens."""
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

    def encode(self, messages: Sequence[Message]) -> list[int]:
        return self._ready.encode(self._ready.template.render(messages))

    def decode(self, ids: Sequence[int]) -> str:
        return self._ready.decode(list(ids))

    @property
    def _ready(self) -> TokenizerFolder:
        if self._loaded is None:
            self.load()
        assert self._loaded is not None
        return self._loaded
