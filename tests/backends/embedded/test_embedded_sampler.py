"""Drawing: the right distribution, truncation, and independence of the rows."""

from __future__ import annotations

import pytest
import torch

from jaz_actors.backends.embedded.sampler import Controls
from jaz_actors.backends.embedded.sampling import SamplingParams

DRAWS = 20_000


def _draws(logits: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """How often each token is drawn, as a part of DRAWS rows."""
    controls = Controls(DRAWS)
    controls.set_row(0, params, seed=0)
    for row in range(1, DRAWS):
        controls.move_row(0, row)
    controls._seeds[:] = torch.arange(DRAWS).numpy()
    return torch.bincount(controls.draw(logits.expand(DRAWS, -1)).ids, minlength=len(logits)) / DRAWS


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_tokens_fall_as_often_as_they_are_likely(temperature: float) -> None:
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0, -9.0])
    drawn = _draws(logits, SamplingParams(temperature=temperature))
    assert torch.allclose(drawn, (logits / temperature).softmax(-1), atol=0.015)


@pytest.mark.parametrize(
    ("params", "kept"),
    [
        (SamplingParams(top_k=2), {1, 3}),
        (SamplingParams(top_p=0.5), {3}),
        (SamplingParams(top_p=0.7), {1, 3}),
        (SamplingParams(min_p=0.3), {1, 3}),
        (SamplingParams(min_p=0.05, top_k=3), {0, 1, 3}),
    ],
)
def test_truncation_keeps_the_likeliest(params: SamplingParams, kept: set[int]) -> None:
    probabilities = torch.tensor([0.10, 0.28, 0.02, 0.60])
    drawn = _draws(probabilities.log(), params)
    assert set(drawn.nonzero()[:, 0].tolist()) == kept
    rest = torch.where(drawn > 0, probabilities, 0.0)
    assert torch.allclose(drawn, rest / rest.sum(), atol=0.015)


def test_a_row_draws_the_same_wherever_it_is_and_whoever_is_with_it() -> None:
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(0))
    alone, among = Controls(1), Controls(3)
    alone.set_row(0, SamplingParams(), seed=7)
    among.set_row(0, SamplingParams(temperature=0), seed=1)
    among.set_row(1, SamplingParams(top_p=0.5), seed=2)
    among.set_row(2, SamplingParams(), seed=7)
    for _ in range(5):
        assert alone.draw(logits[2:]).ids[0] == among.draw(logits).ids[2]
    among.move_row(2, 0)
    assert alone.draw(logits[2:]).ids[0] == among.draw(logits[[2, 1]]).ids[0]


def test_logprobs_are_those_before_truncation() -> None:
    logits = torch.tensor([[1.0, 2.0, 3.0]])
    controls = Controls(1)
    controls.set_row(0, SamplingParams(temperature=0.5, top_k=1), seed=0)
    assert controls.draw(logits).logprobs.item() == pytest.approx((logits / 0.5).log_softmax(-1)[0, 2].item())


def test_a_token_without_probability_is_never_drawn() -> None:
    drawn = _draws(torch.tensor([-torch.inf, 0.0, -torch.inf, 0.0, -torch.inf]), SamplingParams())
    assert set(drawn.nonzero()[:, 0].tolist()) == {1, 3}
