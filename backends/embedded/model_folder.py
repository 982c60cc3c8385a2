"""A Hugging Face causal-LM folder, loaded, and its forward pass over a row cache. Knows no request."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from jaz_actors.backends.embedded.cache import RowCache

ATTENTION_LAYERS = {"full_attention", "sliding_attention"}


class UnservableModel(Exception):
    """The folder is no causal language model whose cache is keys and values of every position."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """context: tokens of prompt and output together. eos: ids that end a reply."""

    path: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    context: int
    vocabulary: int
    layers: int
    eos: frozenset[int]
    cache_argument: str

    def forward(
        self, input_ids: torch.Tensor, *, positions: torch.Tensor, end: int, cache: RowCache, keep_logits: int
    ) -> torch.Tensor:
        """input_ids, positions: [B, T]. end: one past the last position stored.

        Returns logits [B, keep_logits, V] of the last tokens; 0 keeps all.
        """
        visible = torch.arange(end) <= positions[:, None, :, None]
        mask = torch.zeros(visible.shape).masked_fill_(~visible, torch.finfo(torch.float32).min)
        arguments: dict[str, Any] = {self.cache_argument: cache}
        logits: torch.Tensor = self.model(
            input_ids=input_ids,
            position_ids=positions,
            attention_mask=mask,
            use_cache=True,
            logits_to_keep=keep_logits,
            **arguments,
        ).logits
        return logits


def load_model(path: Path, *, context_length: int | None = None) -> LoadedModel:
    """Loads nothing but local files, in float32. Raises UnservableModel."""
    if not (path / "config.json").is_file():
        raise UnservableModel(str(path), "no model folder: it has no config.json")
    try:
        model = AutoModelForCausalLM.from_pretrained(path, local_files_only=True, dtype=torch.float32).eval()
        tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise UnservableModel(str(path), str(error)) from error
    config = model.config.get_text_config()
    unknown = set(getattr(config, "layer_types", None) or ()) - ATTENTION_LAYERS
    if unknown:
        raise UnservableModel(str(path), f"layers of the kinds {sorted(unknown)} are not served")
    return LoadedModel(
        str(path),
        model,
        tokenizer,
        _context(config, context_length),
        int(config.vocab_size),
        int(config.num_hidden_layers),
        _eos_ids(model, tokenizer),
        "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values",
    )


def _context(config: Any, wanted: int | None) -> int:
    """Within a sliding window, sliding attention is full attention; beyond it, this engine would be wrong."""
    limits = [config.max_position_embeddings, wanted, getattr(config, "sliding_window", None)]
    return min(int(limit) for limit in limits if limit)


def _eos_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    configured = getattr(model.generation_config, "eos_token_id", None)
    ids = configured if isinstance(configured, list) else [configured]
    return frozenset(i for i in (*ids, tokenizer.eos_token_id) if isinstance(i, int))
