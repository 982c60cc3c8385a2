"""Writes one ATIF document with all that we put into one: a tree, edits, a summary by a child, errors, token ids."""

from __future__ import annotations

import sys
from typing import Any

from jaz_actors import ConfigOverride, Hook, ReturnType, Scripted, TrajectoryRecorder, configure, invoke, shutdown
from jaz_actors.effects import AddMessages, NewMessage
from jaz_actors.hooks import Compaction
from jaz_actors.messages import Completion, SampledTokens, Usage
from jaz_actors.protocols import CompletionRequest

GATHER = "import asyncio\ngot = await asyncio.gather(*(ainvoke(n=n) for n in range(3)))\nprint('x' * 2500)"


class Hint(Hook):
    def on_llm_query_enter(self, event: Any) -> Any:
        return AddMessages((NewMessage("user", "a hint"),), persistent=True) if event.iteration == 1 else None


def answer(request: CompletionRequest) -> Completion:
    turn, own = request.iteration, request.invoke_id.path.rpartition(".")[2]
    if request.invoke_id.depth == 1:
        code = ["print('so' * 600)", GATHER, "1 / 0", "print(9)", "return got"][turn]
    elif own.startswith("hook"):
        code = "return 'in short'"
    elif own == "1" and request.invoke_id.depth == 2:
        code = "try:\n    invoke(n=n)\nexcept ValueError:\n    print('caught')" if turn == 0 else "return n"
    else:
        code = ["x = n", "print(x)", "raise ValueError(n)" if request.invoke_id.depth == 3 else "return x"][turn]
    prompt = list(range(10 + 5 * turn))
    usage = Usage(sum(len(m.content) for m in request.messages) // 4, 2, 0, 0.5)
    return Completion(code, usage=usage, tokens=SampledTokens(prompt, [turn, 5], [-0.1, 0.0], "1", "2"))


if __name__ == "__main__":
    configure(runtime="inline")
    compaction = Compaction(fraction=0.5, keep_recent=1, context_length=2600)
    with ConfigOverride(backend=Scripted(answer)), Hint(), compaction, TrajectoryRecorder(sys.argv[1]):
        assert invoke(ReturnType(list), task="t") == [0, 1, 2]
    shutdown()
