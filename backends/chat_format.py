"""Messages to token ids and back, as one model family does it. Knows no server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import msgspec

from jaz_actors.errors import ConfigurationError
from jaz_actors.messages import Message, Role

if TYPE_CHECKING:
    from jaz_actors.backends.hf_format import TemplateFormat


class Reply(msgspec.Struct, frozen=True):
    """What a sampled answer says.

    content:    the text that is shown: without special tokens, reasoning and the whitespace after it.
    reasoning:  [start, end) of the sampled ids that are reasoning, tags included; None where there is none. It is
                empty where the prompt ended with reasoning that was over already.
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

    def reply_end_ids(self, *, ended: bool) -> list[int]:
        """What stands between an answer's last id and the next message. ended: that id is the one that stopped it."""
        ...

    def read(self, ids: Sequence[int], *, ended: bool) -> Reply:
        """The answer in sampled ids. ended: the last id is the one that stopped it."""
        ...


class HFChatFormat:
    """The format of a Hugging Face model folder: its tokenizer and its chat template.

    template_variables:  what the template takes beside the messages, such as {"enable_thinking": False}.
    reasoning:   the tags around reasoning; "auto" finds them in the template or among the tokens, None has none.
    own_turns:   where the template takes no system message, or no two messages of one role in a row: give each a
                 turn of its own, a system message that of a user. Without, such a template is refused.
    today:       what a template that writes the date is told; by default the day on which this is constructed.

    Ids are those of the whole conversation rendered and encoded at once, but for what someone wrote: there, special
    tokens are ordinary characters. `load` checks it on conversations and raises ConfigurationError, with the reason,
    for a template or a tokenizer of which that cannot be said.

    tokenizer.json is read with `tokenizers` alone, since loading transformers costs every host seconds and hundreds
    of megabytes; a folder without that file is read by transformers.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        template_variables: Mapping[str, Any] | None = None,
        reasoning: tuple[str, str] | Literal["auto"] | None = "auto",
        own_turns: bool = False,
        today: date | None = None,
    ) -> None:
        self.path = Path(path)
        if not (reasoning is None or reasoning == "auto" or (len(reasoning) == 2 and all(reasoning))):
            raise ConfigurationError("reasoning", f'is "auto", None or an opening and a closing tag; got {reasoning!r}')
        self._variables = dict(template_variables or {})
        self._tags = reasoning
        self._own_turns = own_turns
        self._today = today or date.today()  # noqa: DTZ011 - the day where the user is
        self._loaded: TemplateFormat | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_loaded": None}

    def __repr__(self) -> str:
        return f"HFChatFormat({str(self.path)!r})"

    def load(self) -> None:
        if self._loaded is None:
            from jaz_actors.backends.hf_format import read_format

            self._loaded = read_format(
                self.path,
                variables=self._variables,
                reasoning=self._tags,
                own_turns=self._own_turns,
                today=self._today,
            )

    @property
    def vocabulary(self) -> int:
        return self._ready.vocabulary

    @property
    def stop_ids(self) -> tuple[int, ...]:
        return self._ready.stop_ids

    def message_ids(self, message: Message, previous: Role | None) -> list[int]:
        return self._ready.message_ids(message.role, message.content, previous)

    def reply_start_ids(self) -> list[int]:
        return list(self._ready.reply_start)

    def reply_end_ids(self, *, ended: bool) -> list[int]:
        return list(self._ready.reply_end if ended else self._ready.suffix)

    def read(self, ids: Sequence[int], *, ended: bool) -> Reply:
        return self._ready.read(ids[:-1] if ended else ids)

    @property
    def _ready(self) -> TemplateFormat:
        if self._loaded is None:
            self.load()
        assert self._loaded is not None
        return self._loaded
