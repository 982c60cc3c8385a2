"""The ids of a turn's prompt: taken from the turns before, against rendering and encoding the conversation anew.

Each conversation has N turns of an answer and an output, as agents have them. `anew` is transformers'
`apply_chat_template` on the whole conversation, which gives the same ids only while no sampled ids are unusual;
`pieces` is our own format without what it knows of earlier turns. Times are those of the last turn; the fastest of
several repetitions counts.

    python benchmarks/chat_format.py [--model-path DIR] [--turns 1 16 64 128]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from jaz_actors.backends.chat_format import HFChatFormat
from jaz_actors.backends.conditioning import prompt_of
from jaz_actors.backends.embedded.launch import TINY_POLICY
from jaz_actors.messages import Completion, Message, SampledTokens
from jaz_actors.stamps import Stamps

REPETITIONS = 5
CODE = "rows = [row for row in table if row['total'] > {n}]\nprint(len(rows), rows[:3])\n"
OUTPUT = "{n} [{{'name': 'amber', 'total': 17}}, {{'name': 'basil', 'total': 21}}, {{'name': 'cedar', 'total': 34}}]\n"


def conversation(chat_format: HFChatFormat, turns: int) -> tuple[list[Message], Stamps]:
    """As an invocation has it when its last query is made: the last output is not encoded yet."""
    messages, stamps = [Message("user", "Look through the table and say what stands out.", "seed", 0)], Stamps()
    for turn in range(turns):
        prompt = prompt_of(chat_format, messages, stamps.known)
        code = CODE.format(n=turn)
        said = Message("assistant", code, "llm", 2 * turn + 1, iteration=turn)
        encoded = chat_format.message_ids(said, "user")
        begin, end = chat_format.reply_start_ids(), chat_format.reply_end_ids(ended=False)
        ids = encoded[len(begin) : len(encoded) - len(end)]
        tokens = SampledTokens(prompt.ids, ids, [0.0] * len(ids), stamps=prompt.stamps, suffix_ids=end)
        stamps.sent(messages, tokens)
        answer = Completion(code, tokens=tokens)
        stamps.said(said, answer, answer)
        messages += [said, Message("user", OUTPUT.format(n=turn), "repl", 2 * turn + 2)]
    return messages, stamps


def fastest(call: Callable[[], object]) -> float:
    """Milliseconds."""
    times = []
    for _ in range(REPETITIONS):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model-path", type=Path, default=TINY_POLICY)
    parser.add_argument("--turns", type=int, nargs="+", default=[1, 16, 64, 128])
    options = parser.parse_args()
    chat_format = HFChatFormat(options.model_path)
    chat_format.load()
    tokenizer: Any = AutoTokenizer.from_pretrained(options.model_path, local_files_only=True)
    rows = []
    for turns in options.turns:
        messages, stamps = conversation(chat_format, turns)
        chat = [{"role": message.role, "content": message.content} for message in messages]

        def whole(chat: list[dict[str, str]] = chat) -> Any:
            return tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=True, return_dict=False)

        ids = prompt_of(chat_format, messages, stamps.known).ids
        assert ids == whole() == prompt_of(chat_format, messages, {}).ids
        ours = fastest(lambda m=messages, s=stamps: prompt_of(chat_format, m, s.known))  # type: ignore[misc]
        pieces = fastest(lambda m=messages: prompt_of(chat_format, m, {}))  # type: ignore[misc]
        anew = fastest(whole)
        rows.append({"turns": turns, "ids": len(ids), "ours_ms": ours, "pieces_ms": pieces, "anew_ms": anew})
        print(
            f"{turns:4} turns, {len(ids):6} ids: {ours:7.2f} ms, anew {anew:8.2f} ms ({anew / ours:5.1f} x), "
            f"in pieces {pieces:8.2f} ms ({pieces / ours:5.1f} x)"
        )
    print(json.dumps({"model": str(options.model_path.name), "rows": rows}))


if __name__ == "__main__":
    main()
