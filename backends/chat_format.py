"""Messages to token ids and back, by a tokenizer's own chat template. Knows no server.

The template is rendered as Hugging Face's libraries render it: Jinja2, sandboxed, blocks trimmed, with
`raise_exception`, the special tokens and `add_generation_prompt` at hand.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from jaz_actors.errors import ConfigurationError
from jaz_actors.messages import Message

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class ChatFormat(Protocol):
    """vocabulary_size: every id is below it. stop_ids: ids that end the assistant's turn."""

    @property
    def vocabulary_size(self) -> int: ...

    @property
    def stop_ids(self) -> frozenset[int]: ...

    def encode(self, messages: Sequence[Message]) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...


class TemplateFormat:
    """The chat format of a Hugging Face tokenizer folder (tokenizer.json, tokenizer_config.json or chat_template.jinja).

    Raises ConfigurationError for a folder that lacks one of them. Reading it blocks; do it off the event loop.
    """

    def __init__(self, folder: str | Path) -> None:
        try:
            from tokenizers import Tokenizer
        except ImportError as error:
            raise ImportError(f'{error}; install it with: pip install "jaz-actors[sglang]"') from error
        self.folder = Path(folder)
        path = self.folder / "tokenizer.json"
        if not path.is_file():
            raise ConfigurationError("tokenizer", f"{self.folder} has no tokenizer.json")
        self._tokenizer: Tokenizer = Tokenizer.from_file(str(path))
        config = _json(self.folder / "tokenizer_config.json")
        self._specials = {
            name: _token(config[name]) for name in ("bos_token", "eos_token", "pad_token", "unk_token") if config.get(name)
        }
        self._template = _compiled(self._template_source(config))
        self.stop_ids = self._stop_ids()

    def _template_source(self, config: dict[str, Any]) -> str:
        file = self.folder / "chat_template.jinja"
        source = file.read_text(encoding="utf-8") if file.is_file() else config.get("chat_template")
        if isinstance(source, list):  # several named templates
            source = next((entry["template"] for entry in source if entry["name"] == "default"), None)
        if not isinstance(source, str) or not source:
            raise ConfigurationError("tokenizer", f"{self.folder} has no chat template; a base model cannot be an agent")
        return source

    def _stop_ids(self) -> frozenset[int]:
        configured = _json(self.folder / "generation_config.json").get("eos_token_id")
        ids = configured if isinstance(configured, list) else [configured]
        eos = self._specials.get("eos_token")
        if eos is not None:
            ids = [*ids, self._tokenizer.token_to_id(eos)]
        return frozenset(i for i in ids if isinstance(i, int))

    @property
    def vocabulary_size(self) -> int:
        return int(self._tokenizer.get_vocab_size(with_added_tokens=True))

    def encode(self, messages: Sequence[Message]) -> list[int]:
        text = self._template.render(
            messages=[{"role": message.role, "content": message.content} for message in messages],
            add_generation_prompt=True,
            **self._specials,
        )
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))


def _compiled(source: str) -> Any:
    import jinja2
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.globals["raise_exception"] = _raise
    environment.filters["tojson"] = lambda value, **options: json.dumps(value, ensure_ascii=False, **options)
    try:
        return environment.from_string(source)
    except jinja2.TemplateSyntaxError as error:
        raise ConfigurationError("tokenizer", f"its chat template does not compile: {error}") from error


def _raise(message: str) -> None:
    raise ConfigurationError("messages", f"the chat template refuses them: {message}")


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    loaded = json.loads(path.read_text(encoding="utf-8"))
    return loaded if isinstance(loaded, dict) else {}


def _token(value: Any) -> str:
    return value["content"] if isinstance(value, dict) else str(value)
