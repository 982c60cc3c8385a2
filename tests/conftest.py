"""What every test shares. Knows no part of the package."""

from __future__ import annotations

import multiprocessing.resource_tracker
from collections.abc import Iterator, Sequence
from typing import Any

import psutil
import pytest

SHUTDOWN_SECONDS = 5.0
_LEFT = pytest.StashKey[list[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--sglang-url", help="put tests/contracts/sglang to this server in place of the embedded engine")
    parser.addoption("--sglang-model", help="the folder of its model on this machine; default: the one it names")
    parser.addoption("--sglang-may-kill", action="store_true", help="also send it what ended SGLang 0.5.23")


def _end_children() -> list[str]:
    """Describe the processes below this one that do not end by themselves soon, and kill them."""
    # The interpreter's own: it ends when this process does.
    tracker = multiprocessing.resource_tracker._resource_tracker._pid
    children = [child for child in psutil.Process().children(recursive=True) if child.pid != tracker]
    _, alive = psutil.wait_procs(children, timeout=SHUTDOWN_SECONDS)
    left = [_describe(child) for child in alive if child.is_running()]
    for child in alive:
        child.kill()
    psutil.wait_procs(alive, timeout=SHUTDOWN_SECONDS)
    return left


def _describe(process: psutil.Process) -> str:
    try:
        command: Sequence[str] = process.cmdline()
    except psutil.Error:
        command = ()
    return f"{process.pid} {' '.join(command) or process.name()}"


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a run that leaves a process behind, after the last fixture has been torn down."""
    left = session.config.stash.setdefault(_LEFT, [])
    left += _end_children()
    if hasattr(session.config, "workeroutput"):  # a worker of pytest-xdist reports to the main process
        session.config.workeroutput["left"] = left
    elif left:
        session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    node.config.stash.setdefault(_LEFT, []).extend(getattr(node, "workeroutput", {}).get("left", ()))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    left = config.stash.get(_LEFT, [])
    if left:
        terminalreporter.section("processes left running", red=True)
        for process in left:
            terminalreporter.line(process)


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[None]:
    """One Ray instance for every test that needs one."""
    import ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()


@pytest.fixture(scope="module", params=["inline", pytest.param("ray", marks=pytest.mark.ray)])
def runtime(request: pytest.FixtureRequest) -> Iterator[str]:
    """The runtime that the module's invocations use: one after the other, each open for the whole module."""
    from jaz_actors import configure, shutdown

    if request.param == "ray":
        request.getfixturevalue("ray_cluster")
    configure(runtime=request.param, max_actors=2)
    yield request.param
    shutdown()
