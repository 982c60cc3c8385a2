"""Weights from safetensors files in a folder. Knows no model."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from jaz_actors.backends.embedded.weights import WeightsRefused


def read_checkpoint(folder: Path) -> dict[str, torch.Tensor]:
    """All `*.safetensors` of a Hugging Face model folder. Raises WeightsRefused."""
    files = sorted(folder.glob("*.safetensors")) if folder.is_dir() else []
    if not files:
        raise WeightsRefused(f"{folder} has no safetensors files")
    found: dict[str, torch.Tensor] = {}
    for file in files:
        try:
            found |= load_file(file)
        except (SafetensorError, OSError) as error:
            raise WeightsRefused(f"{file} cannot be read: {error}") from error
    return found
