"""The endpoints that change weights and hold generation up, as SGLang 0.5.23 has them. Knows no model.

Unlike there, an update that cannot be made is answered with 400 and changes nothing, whatever is wrong with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import torch
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from jaz_actors.backends.embedded.buckets import FLATTENED, read_payload, split_flat
from jaz_actors.backends.embedded.checkpoint import read_checkpoint
from jaz_actors.backends.embedded.engine import Engine, PauseMode
from jaz_actors.backends.embedded.requests import Refused
from jaz_actors.backends.embedded.safe_unpickler import PayloadRefused
from jaz_actors.backends.embedded.update_group import GroupFailed, join_group, leave_group, receive
from jaz_actors.backends.embedded.weights import Named, WeightsRefused

B = TypeVar("B", bound=msgspec.Struct)
GET_OR_POST = ["GET", "POST"]


class _Update(msgspec.Struct, kw_only=True):
    """What all updates have. Fields that concern other hardware are ignored."""

    flush_cache: bool = True
    abort_all_requests: bool = False
    weight_version: str | None = None
    load_format: str | None = None


class _DiskUpdate(_Update, kw_only=True):
    model_path: str


class _TensorUpdate(_Update, kw_only=True):
    serialized_named_tensors: list[str]


class _DistributedUpdate(_Update, kw_only=True):
    names: list[str]
    dtypes: list[str]
    shapes: list[list[int]]
    group_name: str = "weight_update_group"


class _Group(msgspec.Struct, kw_only=True):
    master_address: str
    master_port: int
    rank_offset: int
    world_size: int
    group_name: str = "weight_update_group"
    backend: str = "nccl"


class _GroupName(msgspec.Struct, kw_only=True):
    group_name: str = "weight_update_group"


class _VersionUpdate(msgspec.Struct, kw_only=True):
    new_version: str
    abort_all_requests: bool = True


class _Pause(msgspec.Struct, kw_only=True):
    mode: PauseMode = "abort"


class _Named(msgspec.Struct, kw_only=True):
    name: str
    truncate_size: int = 100


class _Check(msgspec.Struct, kw_only=True):
    action: str


class _Nothing(msgspec.Struct):
    pass


class WeightRoutes:
    """Belongs to one event loop. A session is open between `begin_weight_update` and `end_weight_update`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._in_session = False
        self._groups: dict[str, Any] = {}

    def routes(self) -> list[Route]:
        posts: dict[str, Callable[[Request], Awaitable[Response]]] = {
            "/begin_weight_update": self.begin,
            "/end_weight_update": self.end,
            "/update_weights_from_disk": self.from_disk,
            "/update_weights_from_tensor": self.from_tensor,
            "/init_weights_update_group": self.init_group,
            "/update_weights_from_distributed": self.from_distributed,
            "/destroy_weights_update_group": self.destroy_group,
            "/update_weight_version": self.set_version,
            "/weights_checker": self.check,
            "/pause_generation": self.pause,
            "/continue_generation": self.resume,
            "/release_memory_occupation": self.release_memory,
            "/resume_memory_occupation": self.resume_memory,
        }
        return [
            *(Route(path, endpoint, methods=["POST"]) for path, endpoint in posts.items()),
            Route("/get_weights_by_name", self.get_by_name, methods=GET_OR_POST),
            Route("/flush_cache", self.flush_cache, methods=GET_OR_POST),
        ]

    async def close(self) -> None:
        for name in list(self._groups):
            await asyncio.to_thread(leave_group, self._groups.pop(name))

    async def begin(self, request: Request) -> Response:
        await _body(request, _Nothing)
        if self._in_session:
            return _failed("a weight-update session is already open; call end_weight_update() first")
        self._in_session = True
        return _succeeded("weight-update session opened")

    async def end(self, request: Request) -> Response:
        await _body(request, _Nothing)
        if not self._in_session:
            return _failed("no weight-update session is open; call begin_weight_update() first")
        self._in_session = False
        return _succeeded("weight-update session closed")

    async def from_disk(self, request: Request) -> Response:
        body = await _body(request, _DiskUpdate)
        if body.load_format not in (None, "auto", "safetensors"):
            return _failed(f"load_format {body.load_format!r} is not served")
        try:
            named = await asyncio.to_thread(read_checkpoint, Path(body.model_path))
        except WeightsRefused as error:
            return _failed(str(error))
        return await self._update(body, named.items(), whole=True)

    async def from_tensor(self, request: Request) -> Response:
        body = await _body(request, _TensorUpdate)
        if not self._in_session:
            return _failed("update_weights_from_tensor must run between begin_weight_update() and end_weight_update()")
        if len(body.serialized_named_tensors) != 1:
            return _failed("serialized_named_tensors has one entry for each rank, and this engine is one")
        try:
            named = await asyncio.to_thread(read_payload, body.serialized_named_tensors[0], body.load_format)
        except PayloadRefused as error:
            return _failed(f"the payload is refused: {error}")
        return await self._update(body, named)

    async def init_group(self, request: Request) -> Response:
        body = await _body(request, _Group)
        if body.group_name in self._groups:
            return _failed(f"the group {body.group_name!r} exists already")
        if body.backend != "gloo":
            return _failed(f"the backend {body.backend!r} is not served on CPU; use gloo")
        try:
            self._groups[body.group_name] = await asyncio.to_thread(
                join_group,
                body.master_address,
                body.master_port,
                rank=body.rank_offset,
                world_size=body.world_size,
                name=body.group_name,
                backend=body.backend,
            )
        except GroupFailed as error:
            return _failed(f"the group {body.group_name!r} did not come about: {error}")
        return _succeeded("weight-update group initialized")

    async def from_distributed(self, request: Request) -> Response:
        body = await _body(request, _DistributedUpdate)
        group = self._groups.get(body.group_name)
        if group is None:
            return _failed(f"there is no group {body.group_name!r}; call init_weights_update_group first")
        if not len(body.names) == len(body.dtypes) == len(body.shapes):
            return _failed("names, dtypes and shapes differ in number")
        try:
            dtypes = [_dtype(name) for name in body.dtypes]
            named = await asyncio.to_thread(_received, group, body, dtypes)
        except (GroupFailed, PayloadRefused) as error:
            return _failed(str(error))
        return await self._update(body, named)

    async def destroy_group(self, request: Request) -> Response:
        body = await _body(request, _GroupName)
        group = self._groups.pop(body.group_name, None)
        if group is None:
            return _failed(f"there is no group {body.group_name!r}")
        await asyncio.to_thread(leave_group, group)
        return _succeeded("weight-update group destroyed")

    async def _update(self, body: _Update, named: Iterable[Named], *, whole: bool = False) -> Response:
        engine = self._engine

        def change() -> int:
            if body.flush_cache and not engine.is_idle:
                raise WeightsRefused("flush_cache needs a server without requests; while paused, set it to false")
            engine.weights.replace(named, whole=whole)
            if body.weight_version is not None:
                engine.weights.version = body.weight_version
            if body.flush_cache:
                engine.flush_cache()
            return engine.running + engine.waiting + engine.held if engine.is_paused else 0

        if body.abort_all_requests:
            await self._between_steps(engine.abort_all)
        try:
            paused = await asyncio.wrap_future(engine.change(change))
        except WeightsRefused as error:
            return _failed(str(error))
        told = "Succeeded to update model weights."
        if body.weight_version is not None:
            told += f" Weight version updated to {body.weight_version}."
        return _succeeded(told, num_paused_requests=paused)

    async def set_version(self, request: Request) -> Response:
        body = await _body(request, _VersionUpdate)
        engine = self._engine

        def change() -> None:
            if body.abort_all_requests:
                engine.abort_all()
            engine.weights.version = body.new_version

        await self._between_steps(change)
        return _succeeded(f"Weight version updated to {body.new_version}.", new_version=body.new_version)

    async def get_by_name(self, request: Request) -> Response:
        body = await _body(request, _Named)
        weights = self._engine.weights

        def values() -> list[Any] | None:
            tensor = weights.get(body.name)
            return None if tensor is None else tensor.flatten()[: body.truncate_size].float().tolist()

        found = await self._between_steps(values)
        return _refusal("Get parameter by name failed") if found is None else _json(found)

    async def check(self, request: Request) -> Response:
        body = await _body(request, _Check)
        if body.action != "checksum":
            return _failed(f"the action {body.action!r} is not served; use checksum")
        checksums = await self._between_steps(self._engine.weights.checksums)
        return _succeeded("Success", ranks=[{"checksums": checksums}])

    async def pause(self, request: Request) -> Response:
        body = await _body(request, _Pause)
        await self._between_steps(lambda: self._engine.pause(body.mode))
        return _json({"message": f"Generation paused ({body.mode}).", "status": "ok"})

    async def resume(self, request: Request) -> Response:
        await _body(request, _Nothing)
        await self._between_steps(self._engine.resume)
        return _json({"message": "Generation continued.", "status": "ok"})

    async def release_memory(self, request: Request) -> Response:
        await _body(request, _Nothing)
        if not await self._between_steps(self._engine.release_memory):
            return _refusal("memory is released only while no request is running or waiting")
        return _json(None)

    async def resume_memory(self, request: Request) -> Response:
        await _body(request, _Nothing)
        await self._between_steps(self._engine.resume_memory)
        return _json(None)

    async def flush_cache(self, request: Request) -> Response:
        if await self._between_steps(self._engine.flush_cache):
            return PlainTextResponse("Cache flushed.\n")
        return PlainTextResponse("Cache not flushed: requests are running or waiting.\n")

    async def _between_steps(self, call: Callable[[], Any]) -> Any:
        return await asyncio.wrap_future(self._engine.between_steps(call))


def _received(group: Any, body: _DistributedUpdate, dtypes: list[torch.dtype]) -> list[Named]:
    if body.load_format not in (None, FLATTENED):
        raise PayloadRefused(f"load_format {body.load_format!r} is not served")
    if body.load_format is None:
        return list(zip(body.names, receive(group, dtypes, body.shapes), strict=True))
    size = sum(torch.Size(shape).numel() * dtype.itemsize for shape, dtype in zip(body.shapes, dtypes, strict=True))
    (flat,) = receive(group, [torch.uint8], [[size]])
    return split_flat(flat, body.names, dtypes, body.shapes)


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name.removeprefix("torch."), None)
    if not isinstance(dtype, torch.dtype):
        raise PayloadRefused(f"{name!r} is no dtype")
    return dtype


async def _body(request: Request, kind: type[B]) -> B:
    """Raises Refused. No body at all is an empty one."""
    try:
        return msgspec.json.decode(await request.body() or b"{}", type=kind)
    except msgspec.MsgspecError as error:
        raise Refused.malformed(str(error)) from error


def _json(value: Any, *, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status_code=status, media_type="application/json")


def _succeeded(message: str, **more: Any) -> Response:
    return _json({"success": True, "message": message, **more})


def _failed(message: str) -> Response:
    return _json({"success": False, "message": message}, status=400)


def _refusal(message: str) -> Response:
    return _json({"error": {"message": message}}, status=400)
