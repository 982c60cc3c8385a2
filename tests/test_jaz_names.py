"""Programs as JAZ's users write them run here with their imports changed alone."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from jaz_actors import jaz
from jaz_actors.backends.openai import OpenAI
from jaz_actors.errors import ConfigurationError
from jaz_actors.jaz import ConfigOverride, ainvoke, invoke, scope
from jaz_actors.jaz.exceptions import BudgetPoolExhaustedError, IterationLimitExhaustedError
from jaz_actors.jaz.hooks import (
    BudgetPool,
    FileLogger,
    Hook,
    IterationLimit,
    RecursionLimit,
    ReturnType,
    ValidateReturn,
)
from jaz_actors.jaz.hooks.effects import (
    Abort,
    AddInputs,
    AddMessages,
    AddToNamespace,
    Effect,
    ModifyExecResult,
    SupplyInvokeResult,
    SupplyLLMResponse,
)
from jaz_actors.jaz.hooks.events import InvokeEnter, LLMQueryEnter
from jaz_actors.jaz.llm import BaseLLM, LiteLLM, LLMResponse, MockLLM, ModelInfo
from jaz_actors.jaz.repl import Continue, PythonREPL, Return

cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = pytest.mark.usefixtures("runtime")


def test_a_task_with_a_return_type_and_inputs() -> None:
    def model(messages: list[dict[str, str]]) -> str:
        return "return [2 * n for n in numbers]" if "numbers" in messages[1]["content"] else "return 3628800"

    with ConfigOverride(llm=MockLLM(model)):
        assert invoke(ReturnType(int), task="How many orders do ten books have on a shelf?") == 3628800
        assert invoke(ReturnType(list), task="Twice each", numbers=[1, 2, 3]) == [2, 4, 6]


def double(x: int) -> int:
    """Twice a number."""
    return x * 2


class Utils:
    """Small helpers."""

    def double(self, x: int) -> int:
        """Twice a number."""
        return x * 2


def test_tools_are_functions_objects_and_those_of_a_scope() -> None:
    seen: list[str] = []

    def model(messages: list[dict[str, str]]) -> str:
        if "utils" in messages[1]["content"]:
            return f"return utils.double(4), {messages[1]['content']!r}"
        return "return double(4)" if "here" in messages[1]["content"] else "return invoke(task='here')"

    with ConfigOverride(llm=MockLLM(model)):
        assert invoke(task="here", double=double) == 8
        eight, text = invoke(task="with utils", utils=Utils())
        with scope(double=double):
            assert invoke(task="below") == 8
    assert eight == 8
    assert "Small helpers." in text
    assert "double(self, x: int) -> int" in text
    assert seen == []


def test_hooks_in_a_block_and_the_limits(tmp_path: Path) -> None:
    model = MockLLM(lambda messages: "print(1)")
    ended = pytest.raises(BudgetPoolExhaustedError)
    with ended, ConfigOverride(llm=model), FileLogger(tmp_path / "agent.log"), BudgetPool(calls_budget=2):
        invoke(ReturnType(str), task="never ends")
    limited = pytest.raises(IterationLimitExhaustedError)
    with limited, ConfigOverride(llm=model), IterationLimit(max_iterations=2), RecursionLimit(max_depth=2):
        invoke(task="never ends")
    assert "print(1)" in (tmp_path / "agent.log").read_text()


class Concise(Hook):
    """Asks for brevity from the second turn on."""

    def on_llm_query_enter(self, event: LLMQueryEnter) -> list[Effect]:
        if event.iteration >= 1:
            return [AddMessages([{"role": "user", "content": "Be brief."}])]  # type: ignore[arg-type, list-item]
        return []


def test_a_hook_of_ones_own_adds_messages_as_dicts() -> None:
    with (
        ConfigOverride(llm=MockLLM(lambda messages: f"x = {messages[-1]['content']!r}\nif x == 'Be brief.': return x")),
        Concise(),
    ):
        assert invoke(task="go on") == "Be brief."


def test_effects_take_values() -> None:
    class Many(Hook):
        def on_invoke_enter(self, event: InvokeEnter) -> Any:
            return AddInputs({"extra": [1]})

        def on_repl_exec_enter(self, event: Any) -> Any:
            return AddToNamespace({"more": 2}) if event.iteration == 0 else None

        def on_llm_query_send(self, event: Any) -> Any:
            return SupplyLLMResponse(content="return extra, more", prompt_tokens=1) if event.iteration == 1 else None

        def on_repl_exec_complete(self, event: Any) -> Any:
            return ModifyExecResult(Continue("again")) if event.iteration == 0 else None

    class Supplies(Hook):
        def on_invoke_send(self, event: Any) -> Any:
            return SupplyInvokeResult(Return({"a": 1}))

    class Aborts(Hook):
        def on_invoke_enter(self, event: InvokeEnter) -> Any:
            return Abort(PermissionError("no"))

    with ConfigOverride(llm=MockLLM(lambda messages: "return 0")):
        assert invoke(Many(), task="t") == ([1], 2)
        assert invoke(Supplies(), task="t") == {"a": 1}
        with pytest.raises(PermissionError):
            invoke(Aborts(), task="t")


class Mine(BaseLLM):
    def __init__(self, model: str) -> None:
        super().__init__()
        self._model = model

    def complete(self, messages: list[dict[str, str]]) -> LLMResponse:
        return LLMResponse(f"return {self._model!r}", 10, 5, cost_usd=0.25)

    @property
    def model_info(self) -> ModelInfo:  # type: ignore[override]
        return ModelInfo(self._model, can_report_cost=True, max_input_tokens=100)


@pytest.mark.asyncio
async def test_a_backend_of_ones_own_reports_costs() -> None:
    with ConfigOverride(llm=Mine("mine")), BudgetPool(cost_budget=0.5) as pool:
        assert await ainvoke(task="t") == "mine"
    assert pool.spent("US dollars") == 0.25


def test_components_have_their_names() -> None:
    llm = LiteLLM(model="openai/gpt-5-mini", api_base="http://localhost:11434/v1", api_key="x", temperature=0.7)
    assert isinstance(llm, OpenAI)
    assert llm.model == "gpt-5-mini"
    with pytest.raises(ConfigurationError, match="bedrock"):
        LiteLLM(model="bedrock/some")
    with jaz.ConfigOverride(llm=llm, repl=PythonREPL(exec_timeout=60)):
        assert jaz.get_config().repl.timeout == 60


def test_a_validator_raises_to_refuse() -> None:
    def positive(value: int) -> None:
        if value <= 0:
            raise ValueError("must be positive")

    def model(messages: list[dict[str, str]]) -> str:
        return "return 1" if "must be positive" in messages[-1]["content"] else "return -1"

    with ConfigOverride(llm=MockLLM(model)):
        assert invoke(ValidateReturn(positive), task="t") == 1
