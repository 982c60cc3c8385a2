"""One budget for everything that is started in its block, on all hosts: calls, tokens, US dollars.

Reserve before, settle after: a query begins only when what it may use is set aside, so any number of concurrent agents
makes exactly as many calls as the budget has. A query that could be paid for only if another turned out cheaper, or
failed, waits for that one, in the order of asking.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Literal

from jaz_actors import events
from jaz_actors.effects import AddMessages, BlackboardWrite, Effect, NewMessage
from jaz_actors.errors import BudgetExceeded, ConfigurationError, UsageUnknown
from jaz_actors.hooks.base import Answer, Hook
from jaz_actors.hooks.limits import LAST_TURN
from jaz_actors.hooks.values import abort
from jaz_actors.messages import Usage

Unit = Literal["calls", "tokens", "US dollars"]
HOLDERS_NAMED = 5


@dataclass(slots=True)
class _Account:
    """One unit of a pool. `per_call` is what a query reserves: given, or the most that one has used so far."""

    unit: Unit
    budget: float
    per_call: float | None
    learns: bool
    spent: float = 0.0
    by_invocation: Counter[str] = field(default_factory=Counter)

    def admits(self, in_flight: int) -> bool:
        """Whether another query may begin beside those in flight. One alone may use up what is left."""
        if self.spent >= self.budget:
            return False
        if in_flight == 0:
            return True
        if self.per_call is None:
            return False  # what a call uses is not known before the first one is over
        return self.spent + (in_flight + 1) * self.per_call <= self.budget

    def settle(self, path: str, used: float) -> None:
        self.spent += used
        self.by_invocation[path] += used  # type: ignore[assignment]
        if self.learns:
            self.per_call = max(used, self.per_call or 0.0)

    def exceeded(self) -> BudgetExceeded:
        top = tuple((path, amount) for path, amount in self.by_invocation.most_common(HOLDERS_NAMED))
        return BudgetExceeded(self.unit, self.budget, self.spent, top)


class BudgetPool(Hook):
    """What all invocations of a `with` block may use together; who comes too late is aborted with BudgetExceeded.

    calls_budget / tokens_budget / cost_budget:  model calls, prompt and completion tokens, US dollars. A call is
        counted when it has completed; one that failed is given back. Tokens and cost can be passed by at most what one
        call uses beyond what was left.
    tokens_per_call / cost_per_call:  what a query sets aside. None: the most that one has used so far; then the first
        query goes alone.
    warn_..._remaining, warning_text:  as soon as no more than this is left, every query shows the text, once each.

    `spent(unit)` may be read at any time. Used positionally it covers that invocation alone. Calls that other hooks
    answer count as well.
    """

    def __init__(
        self,
        *,
        calls_budget: int | None = None,
        tokens_budget: int | None = None,
        cost_budget: float | None = None,
        tokens_per_call: int | None = None,
        cost_per_call: float | None = None,
        warn_calls_remaining: int | None = None,
        warn_tokens_remaining: int | None = None,
        warn_cost_remaining: float | None = None,
        warning_text: str | None = None,
    ) -> None:
        budgets: list[tuple[Unit, str, float | None, float | None, float | None]] = [
            ("calls", "calls_budget", calls_budget, 1, warn_calls_remaining),
            ("tokens", "tokens_budget", tokens_budget, tokens_per_call, warn_tokens_remaining),
            ("US dollars", "cost_budget", cost_budget, cost_per_call, warn_cost_remaining),
        ]
        self._budgets: list[tuple[Unit, float, float | None]] = []
        self._warnings: dict[Unit, float] = {}
        for unit, name, budget, per_call, warn in budgets:
            _check_positive(name, budget)
            _check_positive(f"what a call uses of the {name}", per_call)
            _check_positive(f"the warning of the {name}", warn)
            if budget is not None:
                self._budgets.append((unit, budget, per_call))
            elif warn is not None or (per_call is not None and unit != "calls"):
                raise ConfigurationError(name, "is not set, and something that goes with it is")
            if warn is not None:
                self._warnings[unit] = warn
        if not self._budgets:
            raise ConfigurationError("BudgetPool", "give at least one budget")
        if bool(self._warnings) != (warning_text is not None):
            raise ConfigurationError("warning_text", "goes with a warn_..._remaining; give both or neither")
        self._warning_text = warning_text
        self._reset()

    def _reset(self) -> None:
        self._accounts = [
            _Account(unit, budget, per_call, per_call is None) for unit, budget, per_call in self._budgets
        ]
        self._in_flight: set[str] = set()
        self._waiting: deque[tuple[str, asyncio.Future[BudgetExceeded | None]]] = deque()

    def setup(self) -> None:
        self._reset()

    def spent(self, unit: Unit) -> float:
        """What has been used; raises ConfigurationError for a unit without a budget."""
        for account in self._accounts:
            if account.unit == unit:
                return account.spent
        raise ConfigurationError(unit, "has no budget in this pool")

    async def on_llm_query_enter(self, event: events.LLMQueryEnter) -> Answer:
        if not event.can_report_cost and any(account.unit == "US dollars" for account in self._accounts):
            return abort(UsageUnknown("US dollars", event.model))
        exceeded = await self._reserved(event.invoke_id)
        if exceeded is not None:
            return abort(exceeded)
        answer: list[Effect] = [BlackboardWrite(LAST_TURN, True)] if self._leaves_nothing() else []
        if any(account.budget - account.spent <= self._warnings.get(account.unit, -1) for account in self._accounts):
            assert self._warning_text is not None
            answer.append(AddMessages((NewMessage("user", self._warning_text),)))
        return answer

    async def _reserved(self, invoke_id: str) -> BudgetExceeded | None:
        """Set aside what a query may use; None once it is, what there is too little of when it cannot be."""
        turn: asyncio.Future[BudgetExceeded | None] = asyncio.get_running_loop().create_future()
        place = (invoke_id, turn)
        self._waiting.append(place)
        self._admit()
        try:
            return await turn
        except asyncio.CancelledError:
            if place in self._waiting:
                self._waiting.remove(place)
            self._release(invoke_id)
            raise

    def _admit(self) -> None:
        while self._waiting:
            invoke_id, turn = self._waiting[0]
            refusing = [account for account in self._accounts if not account.admits(len(self._in_flight))]
            used_up = any(account.spent >= account.budget for account in refusing)
            if refusing and self._in_flight and not used_up:
                return  # those in flight may turn out cheaper, or fail
            self._waiting.popleft()
            if refusing:
                hopeless = max(refusing, key=lambda account: account.spent >= account.budget)
                turn.set_result(hopeless.exceeded())
            else:
                self._in_flight.add(invoke_id)
                turn.set_result(None)

    def _leaves_nothing(self) -> bool:
        """Whether no query may follow those in flight, if they use what they have set aside."""
        queries = len(self._in_flight)
        return any(a.spent + queries * (a.per_call or 0.0) >= a.budget for a in self._accounts)

    def on_llm_query_exit(self, event: events.LLMQueryExit) -> Answer:
        if event.invoke_id not in self._in_flight:
            return None
        used = None if event.completion is None else event.completion.usage
        unknown = None
        path = event.invoke_id.partition(":")[2]
        for account in self._accounts:
            if used is None:
                continue
            amount = _amount(account.unit, used)
            if amount is None:
                unknown = abort(UsageUnknown(account.unit, event.completion.model if event.completion else ""))
                continue
            account.settle(path, amount)
        self._release(event.invoke_id)
        if unknown is not None:
            return unknown
        return BlackboardWrite(LAST_TURN, True) if used is not None and self._leaves_nothing() else None

    def _release(self, invoke_id: str) -> None:
        self._in_flight.discard(invoke_id)
        self._admit()

    def on_invoke_exit(self, event: events.InvokeExit) -> None:
        # Of an invocation whose host died, and of those below it, no query says how it ended.
        below = f"{event.invoke_id}."
        for held in [held for held in self._in_flight if held == event.invoke_id or held.startswith(below)]:
            self._release(held)


def _amount(unit: Unit, usage: Usage) -> float | None:
    match unit:
        case "calls":
            return 1
        case "tokens":
            if usage.prompt_tokens is None and usage.completion_tokens is None:
                return None
            return (usage.prompt_tokens or 0) + (usage.completion_tokens or 0)
        case "US dollars":
            return usage.cost_usd


def _check_positive(name: str, value: float | None) -> None:
    if value is None:
        return
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < float("inf"):
        raise ConfigurationError(name, f"must be a positive number, got {value!r}")
