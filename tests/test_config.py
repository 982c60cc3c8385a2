"""Components by default, by block, by position and by depth; what surrounds a call is taken at the call."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator

import cloudpickle
import pytest

from jaz_actors import (
    REPL,
    CodeProtocol,
    ConfigOverride,
    Scripted,
    ainvoke,
    by_reference,
    config,
    configure,
    errors,
    get_config,
    scope,
)
from jaz_actors.protocols import CompletionRequest

cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("runtime", "untouched")]


@pytest.fixture
def untouched() -> Iterator[None]:
    """The process's defaults, given back."""
    kept = config._default, config._default_by_depth
    yield
    config._default, config._default_by_depth = kept


def named(name: str, deepest: int = 3) -> Scripted:
    """Every agent says by which model it was run, and has a child until the depth is reached."""

    def answer(request: CompletionRequest) -> str:
        below = "*invoke(task='t')" if request.invoke_id.depth < deepest else ""
        return f"return [{name!r}, {below}]"

    return Scripted(answer, model=name)


async def test_a_positional_override_is_of_one_invocation_and_a_block_of_all_below() -> None:
    configure(backend=named("default"))
    assert await ainvoke(ConfigOverride(backend=named("own"))) == ["own", "default", "default"]
    with ConfigOverride(backend=named("block")):
        assert await ainvoke() == ["block", "block", "block"]
        assert await ainvoke(ConfigOverride(backend=named("own"))) == ["own", "block", "block"]
    assert await ainvoke() == ["default", "default", "default"]


async def test_layers_by_depth_hold_at_their_depth_in_the_order_of_the_blocks() -> None:
    configure(backend=named("default"))
    configure(backend=named("second"), depth=2)
    assert await ainvoke() == ["default", "second", "default"]
    with ConfigOverride(backend=named("block")):
        assert await ainvoke() == ["block", "block", "block"]
        with ConfigOverride(backend=named("third"), depth=3):
            assert await ainvoke() == ["block", "block", "third"]
    with ConfigOverride(backend=named("first"), depth=1), ConfigOverride(backend=named("third"), depth=3):
        assert await ainvoke() == ["first", "second", "third"]
    with ConfigOverride(backend=named("third"), depth=3), ConfigOverride(backend=named("later")):
        assert await ainvoke() == ["later", "later", "later"]


async def test_a_default_for_all_depths_takes_back_those_by_depth() -> None:
    configure(backend=named("second"), depth=2)
    configure(backend=named("new"))
    assert await ainvoke() == ["new", "new", "new"]
    configure(repl=REPL(timeout=5), depth=2)
    configure(backend=named("newer"))
    assert get_config(2).repl.timeout == 5
    assert get_config(1).repl.timeout == 30


async def test_components_change_one_by_one() -> None:
    with ConfigOverride(backend=named("block")), ConfigOverride(repl=REPL(timeout=7)):
        assert get_config().repl.timeout == 7
        assert get_config().backend is not None
        with ConfigOverride(protocol=CodeProtocol(max_input_characters=5)):
            assert get_config().repl.timeout == 7


@pytest.mark.parametrize("depth", [0, -1, 1.5, True])
async def test_a_depth_that_is_none_is_refused(depth: int) -> None:
    with pytest.raises(errors.ConfigurationError, match="depth"):
        ConfigOverride(depth=depth)
    with pytest.raises(errors.ConfigurationError, match="depth"):
        configure(depth=depth)


async def test_mistakes_are_refused_before_anything_starts() -> None:
    override = ConfigOverride(backend=named("x"))
    with pytest.raises(errors.ConfigurationError, match="at most one"):
        await ainvoke(override, ConfigOverride(repl=REPL()))
    with pytest.raises(errors.ConfigurationError, match="with `with`"):
        await ainvoke(ConfigOverride(backend=named("x"), depth=2))
    with override, pytest.raises(errors.ConfigurationError, match="active already"), override:
        pass
    with pytest.raises(errors.ConfigurationError, match="not active"):
        override.__exit__(None, None, None)


async def test_agent_code_and_tools_set_no_components() -> None:
    code = (
        "from jaz_actors import ConfigOverride, REPL, errors\ngot = []\n"
        "for what in (lambda: ConfigOverride(repl=REPL()).__enter__(), lambda: invoke(ConfigOverride(repl=REPL()))):\n"
        "    try:\n        what()\n    except errors.ConfigurationError as e:\n        got.append(str(e))\n"
        "return got, tool()"
    )

    def tool() -> str:
        try:
            with ConfigOverride(repl=REPL()):
                return "set"
        except errors.ConfigurationError as error:
            return str(error)

    with ConfigOverride(backend=Scripted([code])):
        (block, positional), at_home = await ainvoke(tool=by_reference(tool))
    assert "agent code" in block
    assert "agent code" in positional
    assert "tools" in at_home


async def test_concurrent_blocks_do_not_see_each_other() -> None:
    async def one(name: str) -> list[str]:
        with ConfigOverride(backend=named(name)), scope(who=name):
            await asyncio.sleep(0)
            return await ainvoke()  # type: ignore[no-any-return]

    names = [f"model-{n}" for n in range(20)]
    assert await asyncio.gather(*(one(name) for name in names)) == [[name] * 3 for name in names]
