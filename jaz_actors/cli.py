"""The `jaz-actors` command. Each subcommand loads what it needs, and nothing before it is chosen."""

from __future__ import annotations

import argparse
import sys
from importlib.metadata import PackageNotFoundError, version


def main(argv: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if argv is None else argv
    parser = argparse.ArgumentParser(
        prog="jaz-actors",
        description="Recursive code-writing agents, each invocation in a process of its own.",
        epilog="Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted.",
    )
    parser.add_argument("--version", action="version", version=f"jaz-actors {_version()}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    demo = commands.add_parser(
        "demo", help="run the main job here: a fan-out of recursive agents on the embedded engine", description=_DEMO
    )
    demo.add_argument("--tasks", type=_positive, default=64, help="root invocations (default 64)")
    demo.add_argument("--seed", type=int, default=1, help="which tasks are generated")
    demo.add_argument("--temperature", type=float, default=0.7, help="of sampling; 0 is greedy")
    demo.add_argument("--runtime", choices=("ray", "inline"), default="ray")
    demo.add_argument("--json", action="store_true", help="print the report as JSON")
    from jaz_actors.trace_cli import add_commands, run_replay, run_resume, run_trace

    add_commands(commands)
    commands.add_parser("serve", help="serve a model folder over SGLang's native API, on CPU", add_help=False)
    # The server has options of its own, so its part of the line is not ours to parse.
    if arguments[:1] == ["serve"]:
        from jaz_actors.backends.embedded.__main__ import main as serve

        return serve(arguments[1:])
    args = parser.parse_args(arguments)
    try:
        return {"demo": _demo, "trace": run_trace, "replay": run_replay, "resume": run_resume}[args.command](args)
    except KeyboardInterrupt:
        return 130


_DEMO = (
    "Starts the embedded engine and the runtime, gives generated tasks to agents that may call agents, prints each "
    "result against its known answer, and ends everything. Exits 0 if nothing hung, leaked or failed by "
    "infrastructure; wrong answers of the tiny policy are reported and allowed."
)


def _demo(args: argparse.Namespace) -> int:
    from jaz_actors.demo import DemoOptions, run_demo

    return run_demo(DemoOptions(args.tasks, args.seed, args.temperature, args.runtime, args.json))


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def _version() -> str:
    try:
        return version("jaz-actors")
    except PackageNotFoundError:
        return "(not installed)"


if __name__ == "__main__":
    sys.exit(main())
