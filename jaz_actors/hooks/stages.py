"""Which effects each event takes. One table, and the check against it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from jaz_actors import effects as e
from jaz_actors import events
from jaz_actors.effects import Effect
from jaz_actors.errors import InvalidEffect
from jaz_actors.events import Event
from jaz_actors.outcomes import Continue

# Every event takes BlackboardWrite as well.
STAGES: dict[type[Event], tuple[type[Effect], ...]] = {
    events.InvokeEnter: (e.AddInputs, e.DropInputs, e.DisableRecursion, e.Abort),
    events.InvokeSend: (e.SupplyInvokeResult, e.Abort),
    events.InvokeComplete: (e.ModifyInvokeResult, e.Abort),
    events.InvokeExit: (),
    events.LLMQueryEnter: (e.AddMessages, e.DropMessages, e.Abort),
    events.LLMQuerySend: (e.SupplyLLMResponse, e.Abort),
    events.LLMQueryRetry: (),
    events.LLMQueryComplete: (e.ModifyLLMResponse, e.Abort),
    events.LLMQueryExit: (e.Abort,),
    events.REPLExecEnter: (e.AddVariables, e.DropVariables, e.InsertCode, e.DeleteCode, e.Abort),
    events.REPLExecSend: (e.SupplyExecResult, e.Abort),
    events.REPLExecComplete: (e.ModifyExecResult, e.Abort),
    events.REPLExecExit: (e.Abort,),
}

# An invocation ends with one of these, so a Continue, which the type checker refuses, is refused here as well.
_OF_INVOCATIONS = (e.SupplyInvokeResult, e.ModifyInvokeResult)


def check_effects(hook: str, event: Event, effects: Sequence[Effect]) -> None:
    """Raises InvalidEffect for the first effect that the event's stage does not take."""
    allowed: tuple[type[Effect], ...] = (*STAGES[type(event)], e.BlackboardWrite)
    for effect in effects:
        name = type(effect).__name__
        if not isinstance(effect, allowed):
            raise InvalidEffect(hook, name, type(event).__name__)
        if isinstance(effect, _OF_INVOCATIONS) and isinstance(effect.result, Continue):
            raise InvalidEffect(hook, f"{name}(Continue)", type(event).__name__)
        if isinstance(effect, (e.AddMessages, e.InsertCode)) and math.isnan(effect.sort_key):
            raise InvalidEffect(hook, f"{name}(sort_key=nan)", type(event).__name__)
