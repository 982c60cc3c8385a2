"""What `/generate` answers for one sequence, finished or not. Knows no HTTP library."""

from __future__ import annotations

import time
from typing import Any

from transformers import PreTrainedTokenizerBase

from jaz_actors.backends.embedded.requests import GenerateBody, Prompt
from jaz_actors.backends.embedded.sequence import Sequence

INCOMPLETE = "\N{REPLACEMENT CHARACTER}"


def answer(
    tokenizer: PreTrainedTokenizerBase, body: GenerateBody, prompt: Prompt, sequence: Sequence, *, version: str
) -> dict[str, Any]:
    """version: that of the weights now, as the API reports it beside the spans."""
    # The finish reason first: once it is there, nothing is appended any more.
    finish = sequence.finish
    count = len(sequence.logprobs)
    ids = sequence.output[:count]
    meta: dict[str, Any] = {
        "id": prompt.rid,
        "finish_reason": finish,
        "prompt_tokens": len(sequence.prompt),
        "completion_tokens": count,
        "cached_tokens": sequence.cached_tokens,
        "cached_tokens_details": None,
        "weight_version": version,
        "num_retractions": sequence.retractions,
        "reasoning_tokens": 0,
        "dp_rank": None,
    }
    if finish is not None:
        meta |= {
            "weight_versions": sequence.spans(count),
            "e2e_latency": sequence.latency,
            "response_sent_to_client_ts": time.time(),
        }
    if body.return_logprob:
        meta |= _logprobs(tokenizer, body, sequence, ids)
    result: dict[str, Any] = {"text": _text(tokenizer, sequence, ids, finish), "output_ids": ids, "meta_info": meta}
    if body.return_prompt_token_ids:
        result["prompt_token_ids"] = sequence.prompt
    return result


def _text(tokenizer: PreTrainedTokenizerBase, sequence: Sequence, ids: list[int], finish: dict[str, Any] | None) -> str:
    """Only the text is trimmed of what stopped it; ids, logprobs and counts keep every token."""
    params = sequence.params
    matched = None if finish is None or params.no_stop_trim else finish.get("matched")
    shown = ids[:-1] if isinstance(matched, int) else ids
    text = tokenizer.decode(
        shown,
        skip_special_tokens=params.skip_special_tokens,
        spaces_between_special_tokens=params.spaces_between_special_tokens,
    )
    assert isinstance(text, str)
    if isinstance(matched, str):
        return text.partition(matched)[0]
    return text if finish is not None else text.rstrip(INCOMPLETE)


def _logprobs(
    tokenizer: PreTrainedTokenizerBase, body: GenerateBody, sequence: Sequence, ids: list[int]
) -> dict[str, Any]:
    def rows(logprobs: list[Any], token_ids: list[int]) -> list[list[Any]]:
        texts = [tokenizer.decode([i]) if body.return_text_in_logprobs else None for i in token_ids]
        return [list(row) for row in zip(logprobs, token_ids, texts, strict=True)]

    def others(found: list[Any]) -> list[Any]:
        """Alternatives, a list a token."""
        return [None if each is None else rows([p for p, _ in each], [i for _, i in each]) for each in found]

    scored = sequence.wants_prompt_logprobs and len(sequence.prompt_logprobs) == len(sequence.prompt)
    start = body.logprob_start_len or 0
    prompt = rows([None, *sequence.prompt_logprobs[start + 1 :]], sequence.prompt[start:]) if scored else []
    found: dict[str, Any] = {
        "input_token_logprobs": prompt,
        "output_token_logprobs": rows(sequence.logprobs[: len(ids)], ids),
        "output_token_logprobs_length": len(ids),
    }
    for name, wanted, inputs, outputs in (
        ("top_logprobs", sequence.wants.top, sequence.prompt_tops, sequence.tops),
        ("token_ids_logprobs", sequence.wants.ids, sequence.prompt_picks, sequence.picks),
    ):
        if wanted:
            found[f"input_{name}"] = others([None, *inputs[start + 1 :]]) if scored else []
            found[f"output_{name}"] = others(outputs[: len(ids)])
    return found
