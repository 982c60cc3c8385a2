"""Reading what a Hugging Face model folder says about tokens. Knows no messages and no server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from jaz_actors.errors import ConfigurationError

_PIP = 'pip install "jaz-actors[sglang]"'


class TokenizerFolder(msgspec.Struct, frozen=True):
    """What was read.

    tokenizer:       the text of its tokenizer.json.
    template:        the chat template's source.
    special_tokens:  the template's variables `bos_token`, `eos_token` and so on.
    eos_ids:         ids that the model's configurations name as ending an answer.
    vocabulary:      one more than the highest id that the model knows; None where its configuration does not say.
    """

    tokenizer: bytes
    template: str
    special_tokens: dict[str, str]
    eos_ids: tuple[int, ...]
    vocabulary: int | None


def read_tokenizer_folder(path: Path) -> TokenizerFolder:
    """Blocks. Raises ConfigurationError for a folder that cannot be used."""
    if not path.is_dir():
        raise ConfigurationError("tokenizer", f"{path} is no folder on this machine")
    config = _json(path / "tokenizer_config.json")
    if (path / "tokenizer.json").is_file():
        tokenizer, template, special = _light(path, config)
    else:
        tokenizer, template, special = _by_transformers(path)
    if template is None:
        raise ConfigurationError("tokenizer", f"{path} has no chat template; give a chat_format")
    model = _json(path / "config.json")
    eos_ids = {*_ids(model.get("eos_token_id")), *_ids(_json(path / "generation_config.json").get("eos_token_id"))}
    return TokenizerFolder(tokenizer, template, special, tuple(sorted(eos_ids)), _vocabulary_of(model))


def _light(path: Path, config: dict[str, Any]) -> tuple[bytes, str | None, dict[str, str]]:
    special = dict(_special_tokens({**_json(path / "special_tokens_map.json"), **config}))
    return (path / "tokenizer.json").read_bytes(), _template_in(path, config), special


def _by_transformers(path: Path) -> tuple[bytes, str | None, dict[str, str]]:
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise ImportError(f"{path} has no tokenizer.json, so reading it needs transformers: {_PIP}") from error
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(path, local_files_only=True)
    except (OSError, ValueError) as error:
        raise ConfigurationError("tokenizer", f"{path} cannot be read: {error}") from error
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise ConfigurationError("tokenizer", f"{path} has none of the library `tokenizers`; give a chat_format")
    templates = tokenizer.chat_template
    template = templates.get("default") if isinstance(templates, dict) else templates
    return backend.to_str().encode(), template, dict(_special_tokens(tokenizer.special_tokens_map))


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
