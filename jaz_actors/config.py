"""What an invocation is run with: backend, REPL, protocol. Resolution of defaults and overrides; no I/O."""

from __future__ import annotations

from contextvars import ContextVar, Token
from dataclasses import dataclass, fields, replace
from typing import Any

from jaz_actors.code_protocol import CodeProtocol
from jaz_actors.errors import ConfigurationError
from jaz_actors.frames.entry import caller
from jaz_actors.frames.repl import REPL
from jaz_actors.protocols import Backend


@dataclass(frozen=True, slots=True)
class Config:
    """The components of an invocation.

    backend:    None means that none was configured.
    dedicated:  a root gets a host of its own, which takes nothing else but its tree and ends with it.
    """

    backend: Backend | None = None
    repl: REPL = REPL()
    protocol: CodeProtocol = CodeProtocol()
    dedicated: bool = False


_EXPECTED: dict[str, tuple[type[Any], str]] = {
    "backend": (Backend, "a backend such as Scripted(...), OpenAI(...) or SGLang(...)"),
    "repl": (REPL, "a REPL(...)"),
    "protocol": (CodeProtocol, "a CodeProtocol(...)"),
    "dedicated": (bool, "True or False"),
}

_default = Config()
_default_by_depth: dict[int, dict[str, Any]] = {}
_overrides: ContextVar[tuple[ConfigOverride, ...]] = ContextVar("jaz_config_overrides", default=())


def configure(
    *,
    backend: Backend | None = None,
    repl: REPL | None = None,
    protocol: CodeProtocol | None = None,
    dedicated: bool | None = None,
    depth: int | None = None,
    **runtime: Any,
) -> None:
    """Set the defaults of this process for invocations that start from now on.

    With `depth`, for those at that depth only (a root has depth 1); a component set without `depth` holds at every
    depth again. `runtime`, `max_actors`, `max_running` and `ray_address` say where invocations run (`RuntimeOptions`);
    they cannot change while the runtime is open. Raises ConfigurationError, and then changes nothing.
    """
    global _default, _default_by_depth
    changes = _checked(backend=backend, repl=repl, protocol=protocol, dedicated=dedicated)
    if depth is not None:
        _check_depth(depth)
        if runtime:
            raise ConfigurationError(min(runtime), "it holds for the whole runtime, not for a depth")
        _default_by_depth = {**_default_by_depth, depth: {**_default_by_depth.get(depth, {}), **changes}}
        return
    if runtime:
        from jaz_actors.runtime import set_options

        set_options(**runtime)
    _default = replace(_default, **changes)
    _default_by_depth = {
        at: {name: value for name, value in layer.items() if name not in changes}
        for at, layer in _default_by_depth.items()
    }


def get_config(depth: int | None = None) -> Config:
    """The configuration that an invocation started here and now would get; without `depth`, but for layers by depth."""
    config = replace(_default, **_default_by_depth.get(depth, {})) if depth is not None else _default
    for override in _overrides.get():
        if override.depth is None or override.depth == depth:
            config = override.apply_to(config)
    return config


@dataclass(frozen=True, slots=True)
class Configs:
    """What one call of `invoke` is run with: the invocation itself, its descendants, those at certain depths."""

    own: Config
    tree: Config
    by_depth: dict[int, Config]


def get_configs(override: ConfigOverride | None) -> Configs:
    """The configurations of a root started here and now; `override` is its own alone."""
    depths = {*_default_by_depth, *(layer.depth for layer in _overrides.get() if layer.depth is not None)}
    own = get_config(1)
    if override is not None:
        own = override.apply_to(own)
    tree = get_config()
    return Configs(own, tree, {depth: get_config(depth) for depth in sorted(depths) if depth > 1})


class ConfigOverride:
    """Other components for what is started inside its `with` block, or, given to `invoke`, for that invocation alone.

    As a `with` block it holds for children too; with `depth`, for invocations at that depth alone (a root has depth 1).
    One instance has one activation at a time.
    """

    def __init__(
        self,
        *,
        backend: Backend | None = None,
        repl: REPL | None = None,
        protocol: CodeProtocol | None = None,
        dedicated: bool | None = None,
        depth: int | None = None,
    ) -> None:
        if depth is not None:
            _check_depth(depth)
        self.depth = depth
        self._changes = _checked(backend=backend, repl=repl, protocol=protocol, dedicated=dedicated)
        self._token: Token[tuple[ConfigOverride, ...]] | None = None

    def apply_to(self, config: Config) -> Config:
        return replace(config, **self._changes)

    def __enter__(self) -> ConfigOverride:
        acting = caller()
        if acting is not None:
            raise ConfigurationError(
                "ConfigOverride", f"{acting.subject} cannot set components; set them around the root"
            )
        if self._token is not None:
            raise ConfigurationError("ConfigOverride", "this instance is active already; make another")
        self._token = _overrides.set((*_overrides.get(), self))
        return self

    def __exit__(self, *exc: object) -> None:
        token, self._token = self._token, None
        if token is None:
            raise ConfigurationError("ConfigOverride", "it is not active")
        _overrides.reset(token)

    def __repr__(self) -> str:
        names = [*self._changes, *([] if self.depth is None else [f"depth={self.depth}"])]
        return f"ConfigOverride({', '.join(names)})"


def _check_depth(depth: int) -> None:
    if not isinstance(depth, int) or isinstance(depth, bool) or depth < 1:
        raise ConfigurationError("depth", f"must be a whole number of at least 1, got {depth!r}")


def _checked(**components: object) -> dict[str, Any]:
    changes = {name: value for name, value in components.items() if value is not None}
    for name, value in changes.items():
        kind, hint = _EXPECTED[name]
        if isinstance(value, type) or not isinstance(value, kind):
            raise ConfigurationError(name, f"expected {hint}, got {value!r}")
    return changes


assert set(_EXPECTED) == {field.name for field in fields(Config)}
