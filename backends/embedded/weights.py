"""The weights of a loaded model: read by name, replaced whole or not at all. Knows no transport.

Names are those of the Hugging Face checkpoint.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

import torch

from jaz_actors.backends.embedded.model_folder import LoadedModel

Named = tuple[str, torch.Tensor]


class WeightsRefused(Exception):
    """An update that cannot be made; the weights are as they were."""


class Weights:
    """Owned by the engine's thread, between its steps. version: the label of what is loaded."""

    def __init__(self, loaded: LoadedModel, version: str) -> None:
        self.version = version
        # Tied ones stand under both of their names.
        self._tensors: Mapping[str, torch.Tensor] = {
            name: tensor.detach() for name, tensor in loaded.model.state_dict(keep_vars=True).items()
        }
        self._tied = set(getattr(loaded.model, "all_tied_weights_keys", None) or ())

    def get(self, name: str) -> torch.Tensor | None:
        return self._tensors.get(name)

    def replace(self, given: Iterable[Named], *, whole: bool = False) -> int:
        """Copy what is known by name; how many that were. Others are ignored, as the API does.

        whole: nothing may be missing. Raises WeightsRefused before anything is changed.
        """
        taken: dict[str, torch.Tensor] = {}
        for name, tensor in given:
            own = self._tensors.get(name)
            if own is None:
                continue
            if own.shape != tensor.shape:
                raise WeightsRefused(f"{name} has the shape {list(tensor.shape)}, the model's has {list(own.shape)}")
            if own.is_floating_point() != tensor.is_floating_point():
                raise WeightsRefused(f"{name} is of {tensor.dtype}, the model's of {own.dtype}")
            taken[name] = tensor
        missing = self._tensors.keys() - taken.keys() - self._tied
        if whole and missing:
            raise WeightsRefused(f"{len(missing)} weights are missing, {min(missing)} among them")
        for name, tensor in taken.items():
            self._tensors[name].copy_(tensor)
        return len(taken)

    def checksums(self) -> dict[str, str]:
        """SHA-256 of each tensor's bytes, in hexadecimal."""
        return {
            name: hashlib.sha256(tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()).hexdigest()
            for name, tensor in self._tensors.items()
        }
