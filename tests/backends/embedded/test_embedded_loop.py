"""The engine without its server: failure of a step, closing, and fairness between long prompts and running rows."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from transformers import (
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from jaz_actors.backends.embedded.engine import Engine, EngineClosed
from jaz_actors.backends.embedded.launch import TINY_POLICY
from jaz_actors.backends.embedded.model_folder import LoadedModel, UnservableModel, load_model
from jaz_actors.backends.embedded.sampling import SamplingParams
from jaz_actors.backends.embedded.sequence import Sequence
from jaz_actors.backends.embedded.server import Server

SMALL: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
WAIT_SECONDS = 20.0


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    torch.manual_seed(0)
    return load_model(_folder(LlamaForCausalLM(LlamaConfig(**SMALL)), tmp_path_factory.mktemp("llama")))


@pytest.fixture
def engine(loaded: LoadedModel) -> Iterator[Engine]:
    engine = Engine(loaded, rows=4, prefill_tokens=8)
    yield engine
    engine.close()
    if engine._thread.ident is not None:
        engine.join()


class Watched(Sequence):
    """A sequence that can be waited for."""

    def __init__(self, prompt: list[int], **params: Any) -> None:
        self.done = threading.Event()
        super().__init__(
            prompt, SamplingParams(**{"temperature": 0, "ignore_eos": True, **params}), self._moved, seed=0
        )

    def _moved(self) -> None:
        if self.finish is not None:
            self.done.set()

    def wait(self) -> dict[str, Any]:
        assert self.done.wait(WAIT_SECONDS)
        assert self.finish is not None
        return self.finish


def test_a_failed_step_answers_its_sequences_and_the_engine_lives(loaded: LoadedModel) -> None:
    broken = True

    class Failing:
        def __call__(self, **arguments: Any) -> Any:
            if broken:
                raise RuntimeError("no luck")
            return loaded.model(**arguments)

        def __getattr__(self, name: str) -> Any:
            return getattr(loaded.model, name)

    model: Any = Failing()
    engine = Engine(dataclasses.replace(loaded, model=model), rows=2)
    engine.start()
    sequences = [Watched([4, 5, 6]) for _ in range(5)]
    for sequence in sequences:
        engine.submit(sequence)
    for sequence in sequences:
        finish = sequence.wait()
        assert (finish["type"], finish["status_code"]) == ("abort", 500)
        assert "no luck" in finish["message"]
    broken = False
    after = Watched([4, 5, 6], max_new_tokens=3)
    engine.submit(after)
    assert after.wait() == {"type": "length", "length": 3}
    engine.close()
    engine.join()


def test_closing_answers_what_runs_and_waits_and_refuses_the_rest(engine: Engine) -> None:
    sequences = [Watched([4 + i, 5], max_new_tokens=200) for i in range(9)]
    for sequence in sequences:
        engine.submit(sequence)
    engine.close()
    engine.start()
    assert {sequence.wait()["type"] for sequence in sequences} == {"abort"}
    with pytest.raises(EngineClosed):
        engine.submit(Watched([4]))
    engine.close()


def test_a_long_prompt_does_not_stall_those_that_generate(engine: Engine) -> None:
    short, long = Watched([4, 5], max_new_tokens=60), Watched([7] * 200, max_new_tokens=1)
    for sequence in (short, long):
        engine._accept(sequence)
    with torch.inference_mode():
        for _ in range(10):
            engine._fill()
            engine._step()
    # 8 tokens a round: the prompt is far from stored, and the other row has had nearly every step.
    assert len(short.output) >= 9
    assert long.output == []
    assert engine.waiting == 1


def test_rows_that_come_and_go_do_not_disturb_each_other(engine: Engine) -> None:
    def sequences() -> list[Watched]:
        return [Watched([4 + 3 * i, *range(10, 10 + 5 * i)], max_new_tokens=3 + 7 * (i % 4)) for i in range(11)]

    engine.start()
    together, alone = sequences(), sequences()
    for sequence in together:
        engine.submit(sequence)
    for sequence in together:
        sequence.wait()
    for sequence in alone:
        engine.submit(sequence)
        sequence.wait()
    assert [s.output for s in together] == [s.output for s in alone]


@pytest.mark.asyncio
@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_gone_before_the_first_token_leaves_nothing_behind(engine: Engine, stream: bool) -> None:
    server = Server(engine)  # of an engine that is not started: no token will come
    body = json.dumps({"input_ids": [4, 5], "stream": stream}).encode()
    incoming = iter([{"type": "http.request", "body": body}])
    scope = {"type": "http", "method": "POST", "path": "/generate", "query_string": b"", "headers": []}

    async def receive() -> dict[str, Any]:
        return next(incoming, {"type": "http.disconnect"})

    async def send(message: MutableMapping[str, Any]) -> None:
        pass

    await server.app()(scope, receive, send)
    assert server._flights == {}
    assert engine.counters.disconnected == 1


@pytest.mark.parametrize(("method", "path"), [("POST", "/generate"), ("POST", "/flush_cache"), ("GET", "/health")])
@pytest.mark.asyncio
async def test_a_closed_engine_is_an_answer(engine: Engine, method: str, path: str) -> None:
    engine.close()
    transport = httpx.ASGITransport(Server(engine).app())
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as http:
        answer = await http.request(method, path, content=b'{"input_ids": [4]}')
    assert answer.status_code == 503


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        (Qwen2Config(**SMALL), Qwen2ForCausalLM),
        (MistralConfig(**SMALL, sliding_window=128), MistralForCausalLM),
    ],
)
def test_other_decoders_give_their_own_greedy_output(config: Any, kind: Any, tmp_path: Path) -> None:
    torch.manual_seed(1)
    loaded = load_model(_folder(kind(config), tmp_path))
    engine = Engine(loaded, rows=2, prefill_tokens=5)
    engine.start()
    prompt = list(range(20, 60))
    sequence = Watched(prompt, max_new_tokens=20)
    engine.submit(sequence)
    sequence.wait()
    engine.close()
    engine.join()
    with torch.inference_mode():
        logits = loaded.model(input_ids=torch.tensor([prompt + sequence.output])).logits[0, len(prompt) - 1 : -1]
    assert logits.argmax(-1).tolist() == sequence.output


def test_a_sliding_window_bounds_the_context(tmp_path: Path) -> None:
    model = MistralForCausalLM(MistralConfig(**SMALL, sliding_window=128))
    assert load_model(_folder(model, tmp_path)).context == 128
    assert load_model(tmp_path, context_length=64).context == 64


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnservableModel, match=r"no config\.json"):
        load_model(tmp_path)


def _folder(model: PreTrainedModel, path: Path) -> Path:
    model.save_pretrained(path)
    AutoTokenizer.from_pretrained(TINY_POLICY, local_files_only=True).save_pretrained(path)
    return path
