"""Trajectories of a run as ATIF v1.7 documents (RFC 0001 of the Harbor project): one a root, children embedded.

A seed message, and one that a hook added for good, is a system or user step, made when it was first sent. A completion
is an agent step, also where its query was aborted after it: `message` is what the model wrote, a tool call `python`
what was run, its observation what came of that. The observation is no user step besides, so nothing stands twice:
`content` is the text that the model was shown of the execution; where that is abbreviated, `extra.full_text` has the
whole. What the model was never shown has no `extra.message`, and its `content` is the whole.

A child hangs on the call during which it was started. One that a hook started hangs on the compaction that it summed
up for, else on a system step of its own. What ATIF has no field for is under `extra`: message edits in `extra.edits`
of the step of their query, or in the entry of `extra.query_failures`.

Totals are of a document's own steps; sums over a tree stand in `final_metrics.extra`.
"""

from __future__ import annotations

import bisect
import functools
import importlib.metadata
from collections.abc import Iterable, Sequence
from typing import Any

from jaz_actors import events as e
from jaz_actors.events import AnyEvent, edited
from jaz_actors.ids import InvokeId
from jaz_actors.messages import Completion, Message, SampledTokens
from jaz_actors.outcomes import ExecResult
from jaz_actors.recorders.atif_values import (
    clean,
    conversation,
    edits_of,
    error_fields,
    error_text,
    iso,
    metrics_of,
    outcome_fields,
    result_text,
    shown_inputs,
    totals_of,
)

VERSION = "ATIF-v1.7"
NOTES = (
    "Token and cost totals are of this document's own steps; final_metrics.extra has those of the whole tree. "
    "Prompt ids are left out where they repeat the step before that has ids: metrics.extra says how many."
)
# What remains after an edit is written out when it is at most so many times what was taken out: linear over a run.
_WRITTEN_OUT = 4
_SOURCES = {"system": "system", "user": "user", "assistant": "agent"}


class Trajectories:
    """Give it every event of a run, each invocation's in their order; ask for the documents at any time.

    full_prompt_ids:  write each query's whole prompt, which grows with the square of the turns.

    The documents do not depend on how events of different invocations are interleaved.
    """

    def __init__(self, *, full_prompt_ids: bool = False) -> None:
        self._full_prompt_ids = full_prompt_ids
        self._trajectories: dict[str, _Trajectory] = {}

    def add(self, event: AnyEvent) -> None:
        """An InvokeEnter of an invocation that is there already is of a resumed run: it begins anew."""
        trajectory = self._trajectories.get(event.invoke_id)
        if trajectory is None or isinstance(event, e.InvokeEnter):
            trajectory = self._trajectories[event.invoke_id] = _Trajectory(event, self._full_prompt_ids)
        trajectory.add(event)

    def documents(self) -> list[dict[str, Any]]:
        """A document a root, in the order in which roots began. They are copies: nothing added later changes them."""
        below: dict[str, list[_Trajectory]] = {}
        roots = []
        for trajectory in self._trajectories.values():
            if trajectory.parent_id in self._trajectories:
                below.setdefault(str(trajectory.parent_id), []).append(trajectory)
            else:
                roots.append(trajectory)
        roots.sort(key=lambda root: (root.begun, root.call_order))
        return [root.document(below, {}) for root in roots]


class _Trajectory:
    """One invocation. `_steps` only grows; other fields name steps by their place in it."""

    def __init__(self, first: AnyEvent, full_prompt_ids: bool) -> None:
        self.id = InvokeId.parse(first.invoke_id)
        self.parent_id = None if self.id.parent is None else str(self.id.parent)
        self.parent_iteration: int | None = None
        self.begun = first.timestamp
        self._full = full_prompt_ids
        self._steps: list[dict[str, Any]] = []
        self._turns: dict[int, int] = {}  # iteration -> its agent step
        self._boundaries: dict[int, int] = {}  # iteration -> the step that says how the buffer was cut before it
        self._extra: dict[str, Any] = {"depth": first.depth, "path": self.id.path}
        self._seen = -1  # the highest number of a message that has its place
        self._next_number = 0
        self._time = 0.0
        self._model: str | None = None
        self._query_begun = self._execution_begun = first.timestamp
        self._buffer: Sequence[Message] = ()
        self._sent: e.LLMQuerySend | None = None
        self._tokens: SampledTokens | None = None
        self._code = ""
        self._result: ExecResult | None = None

    def add(self, event: AnyEvent) -> None:
        self._time = max(self._time, event.timestamp)
        match event:
            case e.InvokeEnter():
                self.parent_id, self.parent_iteration = event.parent_id, event.parent_iteration
                self._extra |= {"parent_trajectory_id": event.parent_id, "parent_iteration": event.parent_iteration}
                self._extra |= {"hooks": list(event.hooks)}
                self._extra |= {"inputs": shown_inputs(event.inputs), "scope": shown_inputs(event.scope)}
            case e.InvokeSend() if event.added or event.dropped:
                self._extra |= {"inputs": shown_inputs(event.inputs), "hook_added_inputs": list(event.added)}
                self._extra |= {"hook_dropped_inputs": list(event.dropped)}
            case e.LLMQueryEnter():
                self._model = event.model
                self._query_begun = event.timestamp
                self._buffer, self._sent = event.messages, None
                self._show(event.messages)
            case e.LLMQuerySend():
                self._query_begun = event.timestamp
                self._sent = event
                self._count(message for add in event.adds for message in add.messages)
            case e.LLMQueryRetry():
                retry = {"iteration": event.iteration, "attempt": event.attempt, "wait_seconds": event.wait}
                self._extra.setdefault("retries", []).append(retry | error_fields(event.error))
            case e.LLMQueryComplete():
                self._answer(event.iteration, event.completion, supplied=event.supplied)
            case e.LLMQueryExit(completion=None):
                self._fail(event)
            case e.LLMQueryExit(completion=Completion() as final):
                self._settle(event.iteration, final)
            case e.REPLExecEnter():
                self._code, self._result, self._execution_begun = event.code, None, event.timestamp
            case e.REPLExecSend() if event.iteration in self._turns:
                self._call(self._steps[self._turns[event.iteration]], event)
            case e.REPLExecComplete():
                self._result = event.result
            case e.REPLExecExit() if event.iteration in self._turns:
                self._executed(self._steps[self._turns[event.iteration]], event)
            case e.InvokeExit() if event.sequence >= 0 or "outcome" not in self._extra:
                self._extra["outcome"] = outcome_fields(event.outcome)
                self._extra["invocation"] = {"start_timestamp": self.begun, "end_timestamp": self._time}

    # -- messages

    def _step(self, source: str, message: str, extra: dict[str, Any], *, queries: int = 0) -> dict[str, Any]:
        step = {"source": source, "message": message, "timestamp": iso(self._time), "llm_call_count": queries}
        self._steps.append(step | {"extra": extra})
        return self._steps[-1]

    def _show(self, messages: Sequence[Message]) -> None:
        """New messages stand at the end of the buffer: only these are looked at."""
        new = []
        for message in reversed(messages):
            if message.number <= self._seen:
                break
            new.append(message)
        for message in reversed(new):
            self._count([message])
            self._seen = max(self._seen, message.number)
            turn = self._turns.get(-1 if message.iteration is None else message.iteration)
            if message.kind == "seed":
                self._message(message)
            elif message.kind == "assistant" and turn is not None:
                self._steps[turn]["extra"]["message"] = message.number
            elif message.kind == "observation" and turn is not None:
                _observed(self._steps[turn], message)

    def _count(self, messages: Iterable[Message]) -> None:
        self._next_number = max([self._next_number, *(message.number + 1 for message in messages)])

    def _message(self, message: Message) -> None:
        extra = {"message": message.number, "kind": message.kind, "iteration": message.iteration}
        self._step(_SOURCES[message.role], message.content, extra | {"pinned": message.pinned or None})
        self._seen = max(self._seen, message.number)

    # -- queries

    def _answer(self, iteration: int, completion: Completion, *, supplied: bool = False) -> None:
        """From here on the edits that are to stay do."""
        extra: dict[str, Any] = {"iteration": iteration, "finish_reason": completion.finish_reason}
        if self._sent is not None:
            self._commit(self._sent)
            extra["edits"] = edits_of(self._sent, committed=True) or None
        extra["invocation"] = {"start_timestamp": self._query_begun, "end_timestamp": self._time}
        extra["status"] = "unfinished"
        extra["supplied"] = supplied or None
        self._turns[iteration] = len(self._steps)
        step = self._step("agent", completion.content, extra, queries=1)
        step["model_name"] = completion.model or self._model or None
        step["metrics"] = metrics_of(completion, self._tokens, full_prompt_ids=self._full)
        if "completion_token_ids" in step["metrics"]:
            self._tokens = completion.tokens

    def _commit(self, sent: e.LLMQuerySend) -> None:
        for add in sent.adds:
            for message in add.messages if add.persistent else ():
                self._message(message)
        dropped = [drop.message for drop in sent.drops if drop.persistent]
        kept = edited(self._buffer, sent.drops, sent.adds, persistent_only=True) if dropped else ()
        if dropped and _size(kept) <= _WRITTEN_OUT * _size(dropped):
            compacts = any(add.persistent for add in sent.adds)
            management = {"type": "compaction" if compacts else "pruning", "boundary": "replace"}
            extra = {"kind": "context", "iteration": sent.iteration, "context_management": management}
            self._boundaries[sent.iteration] = len(self._steps)
            step = self._step("system", f"{len(dropped)} messages were taken out of the conversation.", extra)
            step["observation"] = {"results": [{"content": conversation(kept)}]}

    def _settle(self, iteration: int, final: Completion) -> None:
        if iteration not in self._turns:
            self._answer(iteration, final)
        step = self._steps[self._turns[iteration]]
        step["extra"] |= {"status": None, "message": self._next_number, "kind": "assistant"}
        if final.content != step["message"]:
            step["extra"]["modified"] = final.content

    def _fail(self, event: e.LLMQueryExit) -> None:
        failure: dict[str, Any] = {"iteration": event.iteration, "status": event.status} | error_fields(event.error)
        if event.iteration in self._turns:
            self._steps[self._turns[event.iteration]]["extra"] |= failure
        elif self._sent is not None:
            failure["edits"] = edits_of(self._sent, committed=False) or None
        self._extra.setdefault("query_failures", []).append(failure)

    # -- executions

    def _call(self, step: dict[str, Any], event: e.REPLExecSend) -> None:
        extra: dict[str, Any] = {"written": self._code if self._code != event.code else None}
        extra["added_variables"] = list(event.added_variables) or None
        extra["dropped_variables"] = list(event.dropped_variables) or None
        call_id = f"{self.id}/turn-{event.iteration}"
        call = {"tool_call_id": call_id, "function_name": "python", "arguments": {"code": event.code}, "extra": extra}
        step["tool_calls"] = [call]

    def _executed(self, step: dict[str, Any], event: e.REPLExecExit) -> None:
        extra: dict[str, Any] = {"status": event.status} | error_fields(event.error)
        result: dict[str, Any] = {"extra": extra}
        if event.result is not None:
            result["content"] = result_text(event.result)
            extra["result"] = type(event.result).__name__.lower()
            if self._result is not None and self._result != event.result:
                extra["unmodified"] = result_text(self._result)
        elif event.error is not None:
            result["content"] = error_text(event.error)
        for call in step.get("tool_calls", ()):
            result["source_call_id"] = call["tool_call_id"]
            call["extra"]["invocation"] = {"start_timestamp": self._execution_begun, "end_timestamp": self._time}
        step["observation"] = {"results": [result]}

    # -- the document

    def document(self, below: dict[str, list[_Trajectory]], place: dict[str, Any]) -> dict[str, Any]:
        """With everything `below` it; `place` says on which step of the parent's document it hangs."""
        steps = [dict(step) for step in self._steps]
        children = sorted(below.get(str(self.id), []), key=lambda child: child.call_order)
        self._hang(steps, children)
        if not steps:
            steps.append({"source": "system", "message": "It ended before its first message.", "llm_call_count": 0})
        places = {}
        for number, step in enumerate(steps, start=1):
            step["step_id"] = number
            calls = [call["tool_call_id"] for call in step.get("tool_calls", ())]
            for child_id in refs_of([step]):
                places[child_id] = {"parent_step_id": number, "parent_tool_call_id": calls[0] if calls else None}
        known = {str(child.id): child for child in children}
        embedded = [known[child_id].document(below, found) for child_id, found in places.items()]
        document: dict[str, Any] = clean(
            {
                "schema_version": VERSION,
                "session_id": self.id.run,
                "trajectory_id": str(self.id),
                "agent": {"name": "jaz-actors", "version": _version(), "model_name": self._model or None},
                "notes": NOTES,
                "steps": steps,
                "final_metrics": totals_of(steps, embedded),
                "extra": {"outcome": {"status": "unfinished"}, **self._extra, **place},
            }
        )
        return document | {"subagent_trajectories": embedded} if embedded else document

    def _hang(self, steps: list[dict[str, Any]], children: Iterable[_Trajectory]) -> None:
        """Every child on one step: of those that are there, or one more, where the time says."""
        hung: dict[int, list[_Trajectory]] = {}
        apart = []
        for child in children:
            place = self._place(child)
            if place is None:
                apart.append(child)
            else:
                hung.setdefault(place, []).append(child)
        for place, group in hung.items():
            steps[place]["observation"] = _with_refs(steps[place], group)
        for child in apart:
            bisect.insort(steps, _apart(child), key=lambda step: step["timestamp"])

    def _place(self, child: _Trajectory) -> int | None:
        iteration = -1 if child.parent_iteration is None else child.parent_iteration
        if child.by_hook:
            place = self._boundaries.get(iteration)
            return place if place is not None and iso(child.begun) <= self._steps[place]["timestamp"] else None
        place = self._turns.get(iteration)
        return place if place is not None and "tool_calls" in self._steps[place] else None

    @property
    def by_hook(self) -> bool:
        return self._component.startswith("hook-")

    @property
    def call_order(self) -> tuple[bool, int, float, str]:
        """Ordinals as they count, then keys as they began."""
        numbered = self._component.isdigit()
        return not numbered, int(self._component) if numbered else 0, self.begun, self.id.path

    @property
    def _component(self) -> str:
        return self.id.path.rpartition(".")[2]


def _observed(step: dict[str, Any], message: Message) -> None:
    """What the model is shown takes the place of the whole text, which stays where it is another."""
    for result in step.get("observation", {}).get("results", ()):
        whole = result.get("content", "")
        if whole.rstrip("\n") not in ("", message.content):
            result["extra"]["full_text"] = whole
        result["content"] = message.content
        result["extra"]["message"] = message.number


def _apart(child: _Trajectory) -> dict[str, Any]:
    by_hook = "An agent was started by a hook."
    step = {
        "source": "system",
        "message": by_hook if child.by_hook else "An agent was started; of the call that did it there is no record.",
        "timestamp": iso(child.begun),
        "llm_call_count": 0,
        "extra": {"kind": "subagent", "iteration": child.parent_iteration},
        "observation": {"results": [{}]},
    }
    return step | {"observation": _with_refs(step, [child])}


def _with_refs(step: dict[str, Any], children: Iterable[_Trajectory]) -> dict[str, Any]:
    """The step's observation with references to children, on a copy; a call that still runs gets a result for them."""
    refs = [{"trajectory_id": str(child.id), "session_id": child.id.run} for child in children]
    results = list(step.get("observation", {}).get("results", ()))
    if not results:
        results = [{"source_call_id": step["tool_calls"][0]["tool_call_id"]}]
    return {"results": [{**results[0], "subagent_trajectory_ref": refs}, *results[1:]]}


def refs_of(steps: Iterable[dict[str, Any]]) -> list[str]:
    """The trajectory ids that steps refer to, in their order."""
    return [
        ref["trajectory_id"]
        for step in steps
        for result in step.get("observation", {}).get("results", [])
        for ref in result.get("subagent_trajectory_ref", [])
    ]


def _size(messages: Iterable[Message]) -> int:
    return sum(len(message.content) for message in messages)


@functools.cache
def _version() -> str:
    return importlib.metadata.version("jaz-actors")
