"""Spans: their ids, parents and attributes as OTLP/JSON, live and afterwards."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from jaz_actors import ConfigOverride, Hook, Scripted, ainvoke, configure, shutdown
from jaz_actors.effects import ModifyLLMResponse
from jaz_actors.events import Event, InvokeExit, LLMQueryComplete
from jaz_actors.hooks import abort
from jaz_actors.messages import Completion, Usage
from jaz_actors.recorders.spans import Span, SpanFold, export_json, span_id, spans, trace_id
from tests.recorders.synthetic import RUN, interleaved, invocation

OK, ERROR = 1, 2


def plain(value: dict[str, Any]) -> Any:
    """What an OTLP value stands for."""
    ((kind, held),) = value.items()
    if kind == "arrayValue":
        return [plain(item) for item in held["values"]]
    return int(held) if kind == "intValue" else held


def said(attributes: Any) -> dict[str, Any]:
    names = [item["key"] for item in attributes]
    assert len(set(names)) == len(names)
    return {item["key"]: plain(item["value"]) for item in attributes}


def by_kind(found: list[Span]) -> dict[str, list[tuple[Span, dict[str, Any]]]]:
    result: dict[str, list[tuple[Span, dict[str, Any]]]] = {}
    for span in found:
        attributes = said(span["attributes"])
        result.setdefault(attributes["gen_ai.operation.name"], []).append((span, attributes))
    return result


def test_spans_are_the_same_for_every_interleaving_and_live() -> None:
    streams = [invocation(path, retries=1) for path in ("0", "0.0", "0.10", "0.2", "1")]
    whole = spans(event for stream in streams for event in stream)
    assert all(spans(interleaved(streams, seed)) == whole for seed in range(5))
    fold = SpanFold()
    live = [span for event in interleaved(streams, 7) for span in fold.add(event)]
    assert fold.unfinished() == {}
    assert sorted(live, key=lambda span: span["spanId"]) == sorted(whole, key=lambda span: span["spanId"])


def test_ids_follow_from_the_invoke_id_alone() -> None:
    whole = by_kind(spans(invocation("0.2.1", parent_iteration=3)))
    ((span, attributes),) = whole["invoke_agent"]
    assert span["traceId"] == trace_id(f"{RUN}:0") == trace_id(f"{RUN}:0.2.1") != trace_id(f"{RUN}:1")
    assert span["spanId"] == span_id(f"{RUN}:0.2.1")
    assert span["parentSpanId"] == span_id(f"{RUN}:0.2", "execution", 3)
    assert attributes["jaz.invoke_id"] == f"{RUN}:0.2.1"
    for below, _ in whole["chat"] + whole["execute_tool"]:
        assert (below["traceId"], below["parentSpanId"]) == (span["traceId"], span["spanId"])
    assert re.fullmatch("[0-9a-f]{32}", span["traceId"])
    assert re.fullmatch("[0-9a-f]{16}", span["spanId"])


def test_span_ids_are_unique_and_every_parent_is_there() -> None:
    streams = [invocation(path) for path in ("0", "0.0", "0.0.0", "1")]
    whole = spans(event for stream in streams for event in stream)
    ids = {span["spanId"] for span in whole}
    assert len(ids) == len(whole) == 4 * 5
    orphans = [span for span in whole if span.get("parentSpanId") not in ids]
    assert [said(span["attributes"])["jaz.path"] for span in orphans] == ["0", "1"]


def test_a_chat_span_has_what_the_conventions_name() -> None:
    (span, attributes), _ = by_kind(spans(invocation("0", retries=2, tokens=True)))["chat"]
    assert (span["name"], span["kind"], span["status"]) == ("chat m1", 3, {"code": OK})
    assert attributes["gen_ai.request.model"] == "m1"
    assert attributes["gen_ai.response.model"] == "m1-answering"
    assert attributes["gen_ai.response.finish_reasons"] == ["stop"]
    assert attributes["gen_ai.usage.input_tokens"] == 228
    assert attributes["gen_ai.usage.output_tokens"] == 5
    assert attributes["gen_ai.usage.cost"] == 0.001
    assert attributes["jaz.weight_version"] == "v2"
    shown = json.loads(attributes["gen_ai.input.messages"])
    assert [message["role"] for message in shown] == ["system", "user"]
    assert shown[1]["parts"] == [{"type": "text", "content": "task 0: hello"}]
    (answer,) = json.loads(attributes["gen_ai.output.messages"])
    assert answer["finish_reason"] == "stop"
    assert int(span["endTimeUnixNano"]) - int(span["startTimeUnixNano"]) == pytest.approx(400e6, abs=2000)
    retries = span["events"]
    assert [event["name"] for event in retries] == ["llm_retry"] * 2
    assert said(retries[1]["attributes"])["jaz.attempt"] == 2
    assert said(retries[1]["attributes"])["error.type"] == "jaz_actors.errors.RateLimited"
    starts = [int(event["timeUnixNano"]) for event in retries]
    assert int(span["startTimeUnixNano"]) < starts[0] < starts[1] < int(span["endTimeUnixNano"])


def test_an_execution_is_a_tool_with_code_and_result() -> None:
    (first, printed), (_, returned) = by_kind(spans(invocation("0")))["execute_tool"]
    assert (first["name"], first["kind"]) == ("execute_tool python", 1)
    assert json.loads(printed["gen_ai.tool.call.arguments"]) == {"code": "print('hello', 0, '0')"}
    assert printed["gen_ai.tool.call.result"] == "hello 0 0\n"
    assert (returned["jaz.result"], returned["gen_ai.tool.call.result"]) == ("return", "'hello'")


@pytest.mark.parametrize(
    ("status", "code", "error"),
    [
        ("completed", OK, None),
        ("raised", ERROR, "ValueError"),
        ("aborted", ERROR, "jaz_actors.errors.IterationLimitExceeded"),
        ("failed", ERROR, "jaz_actors.errors.FrameLost"),
    ],
)
def test_the_outcome_is_the_status_of_the_invocation(status: str, code: int, error: str | None) -> None:
    ((span, attributes),) = by_kind(spans(invocation("0", status=status)))["invoke_agent"]
    assert span["status"]["code"] == code
    assert attributes["jaz.outcome"] == status
    assert attributes.get("error.type") == error
    assert ("gen_ai.output.messages" in attributes) is (status == "completed")


def test_an_execution_whose_code_failed_is_an_error() -> None:
    _, (span, attributes) = by_kind(spans(invocation("0", status="aborted")))["execute_tool"]
    assert span["status"] == {"code": ERROR, "message": "NameError: x"}
    assert attributes["error.type"] == "NameError"


@pytest.mark.parametrize("length", range(1, len(invocation("0", retries=1))))
def test_spans_of_an_invocation_that_stops_anywhere_end_with_its_last_event(length: int) -> None:
    events = invocation("0", retries=1)[:length]
    fold = SpanFold()
    for event in events:
        fold.add(event)
    assert fold.unfinished() == fold.unfinished()
    found = spans(events)
    ((whole, attributes),) = by_kind(found)["invoke_agent"]
    assert whole["status"]["code"] == ERROR
    assert attributes["jaz.outcome"] == "unfinished"
    assert int(whole["endTimeUnixNano"]) == round(events[-1].timestamp * 1e6) * 1000
    assert found[0] is whole
    for span in found:
        assert int(whole["startTimeUnixNano"]) <= int(span["startTimeUnixNano"]) <= int(span["endTimeUnixNano"])
        assert int(span["endTimeUnixNano"]) <= int(whole["endTimeUnixNano"])


def test_attributes_are_bounded_and_stay_json() -> None:
    found = spans(invocation("0", said='"é<\n' * 5000, turns=5), max_attribute_length=300)
    for span in found:
        for name, value in said(span["attributes"]).items():
            if name.endswith(("messages", "arguments")):
                loaded = json.loads(value)
                texts = [loaded["code"]] if "code" in loaded else [m["parts"][0]["content"] for m in loaded]
                assert sum(map(len, texts)) <= 300
            elif isinstance(value, str):
                assert len(value) <= 300
    (_, last) = by_kind(found)["chat"][-1]
    shown = json.loads(last["gen_ai.input.messages"])
    assert shown[-1]["parts"][0]["content"].startswith('"é<')  # the newest are kept
    assert last["jaz.message_count"] == 10


def test_a_request_holds_the_spans_below_one_resource() -> None:
    found = spans(invocation("0"))
    (resource,) = json.loads(export_json(found, service_name="mine"))["resourceSpans"]
    assert said(resource["resource"]["attributes"]) == {"service.name": "mine"}
    (scope,) = resource["scopeSpans"]
    assert scope["spans"] == found


# -- real invocations


class Watch(Hook):
    placement = "observer"

    def __init__(self) -> None:
        self.seen: list[Event] = []

    def on_any(self, event: Event) -> None:
        self.seen.append(event)


@pytest.fixture(scope="module")
def inline() -> Iterator[None]:
    configure(runtime="inline")
    yield
    shutdown()


@pytest.mark.asyncio
@pytest.mark.usefixtures("inline")
async def test_a_real_tree_has_children_below_the_execution_that_invoked_them() -> None:
    watch = Watch()
    top = [
        "print('start')",
        "try:\n    await ainvoke(task='below')\nexcept ValueError as e:\n    print(e)",
        "return 5",
    ]

    def answer(request: Any) -> str:
        return "raise ValueError('no')" if request.invoke_id.depth > 1 else top[request.iteration]

    with watch, ConfigOverride(backend=Scripted(answer)):
        assert await ainvoke(task="top") == 5
    found = spans(watch.seen)
    whole = by_kind(found)
    (root, _), (below, attributes) = whole["invoke_agent"]
    assert below["parentSpanId"] == whole["execute_tool"][1][0]["spanId"]
    assert "parentSpanId" not in root
    assert {span["traceId"] for span in found} == {root["traceId"]}
    assert (attributes["jaz.outcome"], below["status"]["code"]) == ("raised", ERROR)
    assert len(found) == 2 + 4 + 4
    assert [span["status"]["code"] for span, _ in whole["execute_tool"]] == [OK, OK, OK, ERROR]


class Replaces(Hook):
    def on_llm_query_complete(self, event: LLMQueryComplete) -> Any:
        if event.iteration == 1:
            return abort(LookupError("enough"))
        return ModifyLLMResponse(Completion("print(2)"))


@pytest.mark.asyncio
@pytest.mark.usefixtures("inline")
async def test_what_a_replaced_or_refused_answer_cost_is_counted() -> None:
    watch = Watch()
    backend = Scripted(lambda request: Completion("print(1)", usage=Usage(10, 2, 0, 0.5)))
    with pytest.raises(LookupError):
        await ainvoke(watch, Replaces(), ConfigOverride(backend=backend))
    assert isinstance(watch.seen[-1], InvokeExit)
    (_, replaced), (refused, attributes) = by_kind(spans(watch.seen))["chat"]
    assert json.loads(replaced["gen_ai.output.messages"])[0]["parts"][0]["content"] == "print(2)"
    assert replaced["gen_ai.usage.cost"] == attributes["gen_ai.usage.cost"] == 0.5
    assert (refused["status"]["code"], attributes["jaz.status"]) == (ERROR, "aborted")
    assert attributes["error.type"] == "LookupError"
