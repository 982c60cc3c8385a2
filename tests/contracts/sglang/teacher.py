"""The served model on its own, in float32: what a server's log-probabilities are compared with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM


class Teacher:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.model: Any = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True, dtype=torch.float32)
        self.model.eval()

    def logprobs(self, ids: list[int], temperature: float = 1.0) -> torch.Tensor:
        """[T, V]: of the token after each position."""
        with torch.inference_mode():
            logits = self.model(input_ids=torch.tensor([ids])).logits[0].float()
        return torch.log_softmax(logits / temperature, dim=-1)

    def of(self, prompt: list[int], output: list[int], temperature: float = 1.0) -> list[float]:
        table = self.logprobs([*prompt, *output], temperature)
        return [float(table[len(prompt) - 1 + n, token]) for n, token in enumerate(output)]

    @property
    def named(self) -> dict[str, torch.Tensor]:
        """The checkpoint's tensors, and copies of them."""
        found: dict[str, torch.Tensor] = {}
        for file in sorted(self.folder.glob("*.safetensors")):
            found |= load_file(file)
        return found

    def changed(self, factor: float = 0.5) -> dict[str, torch.Tensor]:
        """Weights that answer otherwise: the last norm, scaled, and the first row of an MLP."""
        names = [name for name in self.named if name.endswith("model.norm.weight") or "layers.0.mlp" in name]
        assert names
        return {name: (self.named[name] * factor).contiguous() for name in names}

    def write(self, folder: Path, tensors: dict[str, torch.Tensor]) -> Path:
        """The whole model with these tensors in it."""
        folder.mkdir()
        for file in self.folder.iterdir():
            if file.is_file() and file.suffix != ".safetensors":
                (folder / file.name).write_bytes(file.read_bytes())
        save_file({**self.named, **tensors}, folder / "model.safetensors", metadata={"format": "pt"})
        return folder
