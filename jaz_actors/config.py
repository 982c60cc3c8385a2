"""What an invocation is run with: backend, REPL, protocol. Resolution of defaults and overrides; no I/O."""

from __future__ import annotations

from contextvars import ContextVar, Token
from dataclasses import dataclass, fields, replace
from typing import Any

from jaz_actors.code_protocol import CodeProtocol
from jaz_actors.errors import ConfigurationError
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
_overrides: ContextVar[tuple[ConfigOverride, ...]] = ContextVar("jaz_config_overrides", default=())


def configure(
    *,
    backend: Backend | None = None,
    repl: REPL | None = None,
    protocol: CodeProtocol | None = None,
    dedicated: bool | None = None,
    **runtime: Any,
) -> None:
    """Set the defaults of this process for invocations that start from now on.

    `runtime`, `max_actors`, `max_running` and `ray_address` say where they run (see `RuntimeOptions`) and cannot change
    while the runtime is open. Raises ConfigurationError, and then changes nothing.
    """
    global _default
    changes = _checked(backend=backend, repl=repl, protocol=protocol, dedicated=dedicated)
    if runtime:
        from jaz_actors.runtime import set_options

        set_options(**runtime)
    if changes:
        _default = replace(_default, **changes)


def get_config() -> Config:
    """The configuration that an invocation started here and now would get."""
    config = _default
    for override in _overrides.get():
        config = override.apply_to(config)
    return config


class ConfigOverride:
    """Other components for what is started inside its `with` block, or, given to `invoke`, for that invocation alone.

    As a `with` block it holds for children too. One instance has one activation at a time.
    """

    def __init__(
        self,
        *,
        backend: Backend | None = None,
        repl: REPL | None = None,
        protocol: CodeProtocol | None = None,
        dedicated: bool | None = None,
    ) -> None:
        self._changes = _checked(backend=backend, repl=repl, protocol=protocol, dedicated=dedicated)
        self._token: Token[tuple[ConfigOverride, ...]] | None = None

    def apply_to(self, config: Config) -> Config:
        return replace(config, **self._changes)

    def __enter__(self) -> ConfigOverride:
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
        return f"ConfigOverride({', '.join(self._changes)})"


def _checked(**components: object) -> dict[str, Any]:
    changes = {name: value for name, value in components.items() if value is not None}
    for name, value in changes.items():
        kind, hint = _EXPECTED[name]
        if isinstance(value, type) or not isinstance(value, kind):
            raise ConfigurationError(name, f"expected {hint}, got {value!r}")
    return changes


assert set(_EXPECTED) == {field.name for field in fields(Config)}
