"""Statements 18 to 29 and 35 of the conformance list: pauses, updates of the weights, and versions."""

from __future__ import annotations

import base64
import os
import pickle
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tests.contracts.sglang import payloads, trainer
from tests.contracts.sglang.served import LONG, PROMPT, Served
from tests.contracts.sglang.teacher import Teacher

NORM = "model.norm.weight"


@pytest.fixture(scope="module")
def changed(teacher: Teacher) -> dict[str, torch.Tensor]:
    return teacher.changed()


@pytest.fixture(scope="module")
def other(teacher: Teacher, changed: dict[str, torch.Tensor], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with weights that answer otherwise."""
    return teacher.write(tmp_path_factory.mktemp("other") / "model", changed)


def spans(answer: Any) -> list[tuple[str, int, int]]:
    return [(span["version"], span["start"], span["end"]) for span in answer["meta_info"]["weight_versions"]]


@pytest.mark.parametrize("mode", ["in_place", "retract"])
def test_18_a_held_request_goes_on(served: Served, mode: str) -> None:
    asked = served.long()
    with served.paused(mode):
        time.sleep(0.1)
        assert not asked.done()
    answer = asked.result(60)
    assert len(answer["output_ids"]) == LONG
    assert answer["meta_info"]["num_retractions"] == (1 if mode == "retract" else 0)


def test_18_abort_answers_what_there_is(served: Served) -> None:
    asked = served.long()
    with served.paused("abort"):
        answer = asked.result(30)
    assert answer["meta_info"]["finish_reason"]["type"] == "abort"
    assert 0 < len(answer["output_ids"]) < LONG


@pytest.mark.parametrize("mode", ["in_place", "retract"])
def test_19_spans_over_an_update_are_exact(
    served: Served, teacher: Teacher, changed: dict[str, torch.Tensor], other: Path, mode: str
) -> None:
    before = served.version()
    asked = served.long()
    with served.paused(mode):
        served.from_disk(other, "after", flush_cache=False)
        assert served.version() == "after"
    answer = asked.result(60)
    (first, start, cut), (second, again, end) = spans(answer)
    assert (first, start, second, again, end) == (before, 0, "after", cut, LONG)
    assert 0 < cut < LONG
    logprobs = [logprob for logprob, _, _ in answer["meta_info"]["output_token_logprobs"]]
    old = teacher.of(PROMPT, answer["output_ids"])
    assert logprobs[:cut] == pytest.approx(old[:cut], abs=1e-3)
    assert logprobs[cut:] != pytest.approx(old[cut:], abs=1e-3)
    if mode == "retract":  # all keys and values are the new weights'
        new = Teacher(other).of(PROMPT, answer["output_ids"])
        assert logprobs[cut:] == pytest.approx(new[cut:], abs=1e-3)


def test_20_a_request_sent_while_paused_waits(served: Served) -> None:
    with served.paused("in_place"):
        asked = served.later()
        time.sleep(0.2)
        assert not asked.done()
    assert len(asked.result(30)["output_ids"]) == 8


def test_21_weights_from_disk(served: Served, teacher: Teacher, other: Path) -> None:
    before = served.generate()["output_ids"]
    said = served.from_disk(other, "disk-1")
    assert said["success"]
    assert served.version() == "disk-1"
    answer = served.generate(sampling={"max_new_tokens": 20, "temperature": 1.0})
    logprobs = [logprob for logprob, _, _ in answer["meta_info"]["output_token_logprobs"]]
    assert logprobs == pytest.approx(Teacher(other).of(PROMPT, answer["output_ids"]), abs=1e-4)
    assert answer["meta_info"]["weight_version"] == "disk-1"
    served.from_disk(teacher.folder, "disk-2")
    assert served.generate()["output_ids"] == before


def test_21_a_missing_folder_changes_nothing(served: Served, tmp_path: Path) -> None:
    before, version = served.generate()["output_ids"], served.version()
    answer = served.post("/update_weights_from_disk", model_path=str(tmp_path / "none"), weight_version="lost")
    assert answer.status_code == 400
    assert answer.json()["success"] is False
    assert (served.generate()["output_ids"], served.version()) == (before, version)


def _needs_sessions(served: Served) -> None:
    if served.post("/begin_weight_update").status_code == 404:
        pytest.skip("a server from before weight-update sessions")
    served.ok("/end_weight_update")


def test_22_a_tensor_update_needs_a_session(served: Served, changed: dict[str, torch.Tensor]) -> None:
    _needs_sessions(served)
    answer = served.post(
        "/update_weights_from_tensor", serialized_named_tensors=payloads.plain(changed), flush_cache=False
    )
    assert answer.status_code == 400
    assert "must run between begin_weight_update() and end_weight_update()" in answer.json()["message"]
    served.ok("/begin_weight_update")
    again = served.post("/begin_weight_update")
    served.ok("/end_weight_update")
    assert (again.status_code, "already open" in again.json()["message"]) == (400, True)
    more = served.post("/end_weight_update")
    assert (more.status_code, "no weight-update session is open" in more.json()["message"]) == (400, True)


def test_23_a_tensor_by_value_is_seen(served: Served, changed: dict[str, torch.Tensor]) -> None:
    with served.updating():
        served.ok(
            "/update_weights_from_tensor",
            serialized_named_tensors=payloads.plain(changed),
            flush_cache=True,
            weight_version="t-1",
        )
    assert served.version() == "t-1"
    assert served.weights(NORM) == pytest.approx(changed[NORM][:100].float().tolist())


def test_24_a_bucket_is_the_same_as_a_list(served: Served, changed: dict[str, torch.Tensor]) -> None:
    with served.updating():
        served.ok("/update_weights_from_tensor", serialized_named_tensors=payloads.plain(changed))
    plain = served.checksums()
    served.restore()
    assert served.checksums() != plain
    with served.updating():
        served.ok(
            "/update_weights_from_tensor",
            serialized_named_tensors=payloads.bucket(changed),
            load_format="flattened_bucket",
        )
    assert served.checksums() == plain


@pytest.fixture
def broadcasting(changed: dict[str, torch.Tensor], tmp_path: Path) -> Iterator[Callable[[str], Any]]:
    """A trainer's process, waiting for the server in a group of the name."""
    started: list[subprocess.Popen[str]] = []

    def start(name: str) -> tuple[int, subprocess.Popen[str]]:
        save_file(changed, tmp_path / "sent.safetensors")
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        command = [sys.executable, str(trainer.__file__), str(port), name, str(tmp_path / "sent.safetensors")]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(process)
        return port, process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_25_a_group_update_is_the_same_as_a_list(
    served: Served, changed: dict[str, torch.Tensor], broadcasting: Callable[[str], Any]
) -> None:
    with served.updating():
        served.ok("/update_weights_from_tensor", serialized_named_tensors=payloads.plain(changed))
    plain = served.checksums()
    served.restore()
    port, process = broadcasting("test_group")
    group = {"group_name": "test_group"}
    served.ok(
        "/init_weights_update_group",
        master_address="127.0.0.1",
        master_port=port,
        rank_offset=1,
        world_size=2,
        backend="gloo",
        **group,
    )
    assert process.stdout.readline() == "joined\n"
    try:
        process.stdin.write("\n")
        process.stdin.flush()
        with served.updating():
            served.ok(
                "/update_weights_from_distributed",
                names=sorted(changed),
                dtypes=[str(changed[name].dtype).removeprefix("torch.") for name in sorted(changed)],
                shapes=[list(changed[name].shape) for name in sorted(changed)],
                weight_version="g-1",
                **group,
            )
        assert served.version() == "g-1"
        assert served.checksums() == plain
    finally:
        served.ok("/destroy_weights_update_group", **group)


def test_26_a_new_label_ends_requests_only_by_default(served: Served) -> None:
    asked = served.long()
    said = served.ok("/update_weight_version", new_version="label-1", abort_all_requests=False)
    assert said["new_version"] == "label-1"
    answer = asked.result(60)
    assert answer["meta_info"]["finish_reason"]["type"] == "length"
    served._touched = True
    asked = served.long()
    served.ok("/update_weight_version", new_version="label-2")
    assert asked.result(30)["meta_info"]["finish_reason"]["type"] == "abort"
    assert served.version() == "label-2"


def test_27_an_unknown_name_is_refused_when_read(served: Served) -> None:
    answer = served.post("/get_weights_by_name", name="no.such.weight")
    assert answer.status_code == 400
    assert "Get parameter by name failed" in answer.text


def test_28_checksums_change_with_the_weights(served: Served, other: Path, teacher: Teacher) -> None:
    before = served.checksums()
    assert served.checksums() == before
    served.from_disk(other, "sums")
    after = served.checksums()
    assert after.keys() == before.keys()
    assert after != before
    served.from_disk(teacher.folder, "sums-2")
    assert served.checksums() == before


def test_29_memory_is_released_and_resumed(served: Served) -> None:
    before = served.generate()["output_ids"]
    assert served.ok("/release_memory_occupation") is None
    assert served.ok("/resume_memory_occupation") is None
    assert served.generate()["output_ids"] == before


class _Runs:
    def __reduce__(self) -> Any:
        return os.system, ("touch /tmp/should_not_be_there",)


def test_35_a_hostile_pickle_is_refused(served: Served, pytestconfig: pytest.Config) -> None:
    if not (served.is_ours or pytestconfig.getoption("--sglang-may-kill")):
        pytest.skip("it ends SGLang 0.5.23; --sglang-may-kill sends it all the same")
    before = served.checksums()
    hostile = base64.b64encode(pickle.dumps([("x", _Runs())])).decode()
    with served.updating():
        answer = served.post("/update_weights_from_tensor", serialized_named_tensors=[hostile])
    assert answer.status_code == 400
    assert served.checksums() == before
    assert not Path("/tmp/should_not_be_there").exists()
    assert len(served.generate()["output_ids"]) == 8
