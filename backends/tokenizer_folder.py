"""Reading what a Hugging Face model folder says about tokens. Knows no messages and no server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from jaz_actors.backends.chat_template import ChatTemplate
from jaz_actors.errors import ConfigurationError

_PIP = 'pip install "jaz-actors[sglang]"'


@dataclass(frozen=True, slots=True)
class TokenizerFolder:
    """What was read.

    encode, decode:  text to ids without adding any, and ids to text without special tokens.
    vocabulary:      one more than the highest id that the model knows.
    """

    template: ChatTemplate
    encode: Callable[[str], list[int]]
    decode: Callable[[list[int]], str]
    stop_ids: tuple[int, ...]
    vocabulary: int


@dataclass(frozen=True, slots=True)
class _Tokenizer:
    encode: Callable[[str], list[int]]
    decode: Callable[[list[int]], str]
    id_of: Callable[[str], int | None]
    size: int
    template: str | None
    special_tokens: dict[str, str]


def read_tokenizer_folder(path: Path) -> TokenizerFolder:
    """Blocks. Raises ConfigurationError for a folder that cannot be used."""
    if not path.is_dir():
        raise ConfigurationError("tokenizer", f"{path} is no folder on this machine")
    config = _json(path / "tokenizer_config.json")
    tokenizer = _light(path, config) if (path / "tokenizer.json").is_file() else _by_transformers(path)
    if tokenizer.template is None:
        raise ConfigurationError("tokenizer", f"{path} has no chat template; give a chat_format")
    model = _json(path / "config.json")
    stop_ids = set(_ids(model.get("eos_token_id")))
    stop_ids.update(_ids(_json(path / "generation_config.json").get("eos_token_id")))
    eos = tokenizer.special_tokens.get("eos_token")
    stop_ids.update(_ids(tokenizer.id_of(eos) if eos is not None else None))
    return TokenizerFolder(
        ChatTemplate(tokenizer.template, special_tokens=tokenizer.special_tokens),
        tokenizer.encode,
        tokenizer.decode,
        tuple(sorted(stop_ids)),
        _vocabulary_of(model) or tokenizer.size,
    )


def _light(path: Path, config: dict[str, Any]) -> _Tokenizer:
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise ImportError(f"reading {path} needs tokenizers: {_PIP}") from error
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return _Tokenizer(
        lambda text: tokenizer.encode(text, add_special_tokens=False).ids,
        lambda ids: tokenizer.decode(ids, skip_special_tokens=True),
        tokenizer.token_to_id,
        max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1,
        _template_in(path, config),
        dict(_special_tokens({**_json(path / "special_tokens_map.json"), **config})),
    )


def _by_transformers(path: Path) -> _Tokenizer:
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise ImportError(f"{path} has no tokenizer.json, so reading it needs transformers: {_PIP}") from error
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(path, local_files_only=True)
    except (OSError, ValueError) as error:
        raise ConfigurationError("tokenizer", f"{path} cannot be read: {error}") from error
    templates = tokenizer.chat_template
    return _Tokenizer(
        lambda text: list(tokenizer.encode(text, add_special_tokens=False)),
        lambda ids: str(tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)),
        tokenizer.convert_tokens_to_ids,
        len(tokenizer),
        templates.get("default") if isinstance(templates, dict) else templates,
        dict(_special_tokens(tokenizer.special_tokens_map)),
    )


def _template_in(path: Path, config: dict[str, Any]) -> str | None:
    """A file of its own goes before the tokenizer's configuration: a text there, or a list of named ones."""
    own = path / "chat_template.jinja"
    if own.is_file():
        return own.read_text(encoding="utf-8")
    found = config.get("chat_template")
    if isinstance(found, list):
        found = {entry["name"]: entry["template"] for entry in found}.get("default")
    return found


def _special_tokens(config: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in config.items():
        token = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(token, str):
            yield name, token


def _vocabulary_of(model: dict[str, Any]) -> int | None:
    for config in (model, model.get("text_config")):
        if isinstance(config, dict) and isinstance(config.get("vocab_size"), int):
            return int(config["vocab_size"])
    return None


def _ids(value: Any) -> list[int]:
    values = value if isinstance(value, list) else [value]
    return [item for item in values if isinstance(item, int)]


def _json(path: Path) -> dict[str, Any]:
    """An object in a file; empty where there is no file."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigurationError("tokenizer", f"{path} cannot be read: {error}") from error
