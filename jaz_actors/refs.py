"""Objects that stay at home: proxies, the table of what a process has lent, and the operations a proxy may ask for.

A proxy's calls and attribute reads run where the object is; their results come back by value, or again by reference
when they cannot be copied. Names that begin with an underscore cannot be reached. How an operation travels is the
installed `ReferenceTransport`'s affair.
"""

from __future__ import annotations

import inspect
import itertools
import operator
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, Protocol

import msgspec

from jaz_actors.errors import ReferenceGone
from jaz_actors.payload import Payload, ReferenceRecord
from jaz_actors.transfer import qualified_name

CHUNK = 64
_METHODS_SHOWN = 64


class ByReference:
    """Marks a value that is to be passed by reference. Made by `by_reference`."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value

    def __repr__(self) -> str:
        return f"by_reference({self.value!r})"


def by_reference(value: object) -> Any:
    """Pass `value` to an invocation as a proxy: calls and attribute reads run here, in the process that has it."""
    return value if isinstance(value, (ByReference, Reference)) else ByReference(value)


class Operation(msgspec.Struct, frozen=True, array_like=True):
    """What a proxy asks of its object: a verb of `VERBS` (or `call`, `method`) and a name where it takes one."""

    number: int
    verb: str
    name: str = ""


class ReferenceTransport(Protocol):
    """How this process reaches the homes of references. `operate` blocks; both raise what the operation raised."""

    home: str
    table: ReferenceTable

    def operate(self, record: ReferenceRecord, operation: Operation, args: Any, kwargs: Any) -> Any: ...

    def operate_async(
        self, record: ReferenceRecord, operation: Operation, args: Any, kwargs: Any
    ) -> Awaitable[Any]: ...


_transport: ReferenceTransport | None = None


def install(transport: ReferenceTransport | None) -> None:
    """Set this process's transport. Done once, by the frame or the runtime that owns the process."""
    global _transport
    _transport = transport


def _reach(record: ReferenceRecord) -> ReferenceTransport:
    if _transport is None:
        raise ReferenceGone(record.type_name, "no runtime is open in this process")
    return _transport


def rebuild(record: ReferenceRecord) -> Any:
    """Unpickles a proxy; at home it is the object again."""
    if _transport is not None and _transport.home == record.home:
        return _transport.table.get(record.number, record.type_name)
    return Reference(record)


def lends(payload: Payload) -> bool:
    """Whether a packed value holds proxies, which are good only while their homes live."""
    return __name__.encode() in payload.pickled and rebuild.__name__.encode() in payload.pickled


class Reference:
    """Stands for an object whose home is another process."""

    __slots__ = ("_record",)
    _record: ReferenceRecord

    def __init__(self, record: ReferenceRecord) -> None:
        object.__setattr__(self, "_record", record)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[ReferenceRecord]]:
        return rebuild, (self._record,)

    def __repr__(self) -> str:
        return f"<reference to {self._record.type_name} at {self._record.home}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Reference) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[str, int]:
        return self._record.home, self._record.number

    def _do(self, verb: str, *args: Any, name: str = "", **kwargs: Any) -> Any:
        record = self._record
        return _reach(record).operate(record, Operation(record.number, verb, name), args, kwargs)

    def _do_async(self, verb: str, *args: Any, name: str = "", **kwargs: Any) -> Awaitable[Any]:
        record = self._record
        return _reach(record).operate_async(record, Operation(record.number, verb, name), args, kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        operate = self._do_async if self._record.is_coroutine else self._do
        return operate("call", *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{name!r} of {self._record.type_name} is not reachable by reference")
        if name in self._record.methods:
            return _Method(self, name)
        return self._do("getattr", name=name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            raise AttributeError(f"{name!r} of {self._record.type_name} is not reachable by reference")
        self._do("setattr", value, name=name)

    def __len__(self) -> int:
        return int(self._do("len"))

    def __bool__(self) -> bool:
        return bool(self._do("bool"))

    def __str__(self) -> str:
        return str(self._do("str"))

    def __contains__(self, item: object) -> bool:
        return bool(self._do("contains", item))

    def __getitem__(self, key: Any) -> Any:
        return self._do("getitem", key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._do("setitem", key, value)

    def __delitem__(self, key: Any) -> None:
        self._do("delitem", key)

    def __enter__(self) -> Any:
        return self._do("enter")

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> Any:
        # The traceback's frames cannot travel; the error itself does.
        return self._do("exit", kind, error, None)

    def __iter__(self) -> Iterator[Any]:
        iterator = self._do("iter")
        while chunk := iterator._do("take", CHUNK) if isinstance(iterator, Reference) else list(iterator):
            yield from chunk
            if len(chunk) < CHUNK or not isinstance(iterator, Reference):
                return

    async def __aiter__(self) -> AsyncIterator[Any]:
        iterator = await self._do_async("aiter")
        while chunk := await iterator._do_async("atake", 1):
            for item in chunk:
                yield item


class _Method:
    """A method of a referenced object: one round trip a call."""

    __slots__ = ("_name", "_reference")

    def __init__(self, reference: Reference, name: str) -> None:
        self._reference = reference
        self._name = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        asynchronous = self._name in self._reference._record.coroutine_methods
        operate = self._reference._do_async if asynchronous else self._reference._do
        return operate("method", *args, name=self._name, **kwargs)

    def __repr__(self) -> str:
        return f"<method {self._name} of {self._reference!r}>"


class ReferenceTable:
    """What this process has lent, each object until the owner (an invoke id) for which it was lent is over.

    The lock protects the dicts: objects are lent and asked for from any thread.
    """

    def __init__(self, home: str) -> None:
        self.home = home
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._objects: dict[int, object] = {}
        self._owner: dict[int, str] = {}
        self._owned: dict[str, list[int]] = {}

    def lend(self, value: object, owner: str) -> Reference:
        with self._lock:
            number = next(self._numbers)
            self._objects[number] = value
            self._owner[number] = owner
            self._owned.setdefault(owner, []).append(number)
        return Reference(describe_object(value, self.home, number))

    def get(self, number: int, description: str) -> object:
        with self._lock:
            if number not in self._objects:
                raise ReferenceGone(description, "the invocation it was lent to is over")
            return self._objects[number]

    def release(self, owner: str) -> None:
        with self._lock:
            for number in self._owned.pop(owner, ()):
                del self._objects[number], self._owner[number]

    def owner(self, number: int) -> str:
        return self._owner[number]

    def __len__(self) -> int:
        return len(self._objects)


def describe_object(value: object, home: str, number: int) -> ReferenceRecord:
    cls = value if isinstance(value, type) else type(value)
    public = [name for name in dir(cls) if not name.startswith("_")]
    methods = [name for name in public if callable(getattr(cls, name, None))][:_METHODS_SHOWN]
    return ReferenceRecord(
        home,
        number,
        qualified_name(type(value)),
        inspect.getdoc(value) or "",
        signature_text(value),
        tuple(methods),
        tuple(name for name in methods if inspect.iscoroutinefunction(getattr(cls, name))),
        inspect.iscoroutinefunction(value) or inspect.iscoroutinefunction(type(value).__call__)
        if callable(value)
        else False,
    )


def signature_text(value: object) -> str:
    """`(a, b=1) -> int`, or the empty string for what is not callable or has no signature."""
    if not callable(value):
        return ""
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return "(...)"
    bare = [p.replace(annotation=_bare(p.annotation)) for p in signature.parameters.values()]
    return str(signature.replace(parameters=bare, return_annotation=_bare(signature.return_annotation)))


class _Bare:
    """An annotation that is text, as under `from __future__ import annotations`, without its quotes."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def _bare(annotation: Any) -> Any:
    return _Bare(annotation) if isinstance(annotation, str) else annotation


def _take(iterator: Iterator[Any], count: int) -> list[Any]:
    return list(itertools.islice(iterator, count))


async def _atake(iterator: AsyncIterator[Any], count: int) -> list[Any]:
    items: list[Any] = []
    async for item in iterator:
        items.append(item)
        if len(items) == count:
            break
    return items


def _exit(target: Any, kind: Any, error: Any, traceback: Any) -> Any:
    return type(target).__exit__(target, kind, error, traceback)


VERBS: dict[str, Callable[..., Any]] = {
    "len": len,
    "bool": bool,
    "str": str,
    "contains": operator.contains,
    "getitem": operator.getitem,
    "setitem": operator.setitem,
    "delitem": operator.delitem,
    "iter": iter,
    "take": _take,
    "aiter": aiter,
    "atake": _atake,
    "enter": lambda target: type(target).__enter__(target),
    "exit": _exit,
}


def perform(target: Any, operation: Operation, args: Any, kwargs: Any) -> Any:
    """Do what a proxy asked, at home. Gives an awaitable when the object's own answer is one."""
    if operation.name.startswith("_"):
        raise AttributeError(f"{operation.name!r} is not reachable by reference")
    match operation.verb:
        case "call":
            return target(*args, **kwargs)
        case "method":
            return getattr(target, operation.name)(*args, **kwargs)
        case "getattr":
            return getattr(target, operation.name)
        case "setattr":
            return setattr(target, operation.name, *args)
        case verb if verb in VERBS:
            return VERBS[verb](target, *args)
        case verb:
            raise AttributeError(f"{verb!r} is not an operation on references")
