"""`jaz-actors trace` and `jaz-actors resume`: views of a recorded run, and its continuation, from the command line."""

from __future__ import annotations

import argparse
import json
import runpy
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from jaz_actors.errors import JazError
from jaz_actors.recorders.runs import RecordedRun


def add_commands(commands: Any) -> None:
    trace = commands.add_parser("trace", help="look at a recorded run: views of the folder that Recorder was given")
    views = trace.add_subparsers(dest="view", required=True, metavar="VIEW")
    for name, text, takes_output in (
        ("stats", "counts, tokens and cost, as JSON", False),
        ("directory", "a folder of Markdown, nested as the invocations are", True),
        ("html", "one page with tree, timeline and every turn", True),
        ("log", "lines of text, each with its invoke id", False),
        ("program", "the run's first root as a Python package that runs by itself", True),
        ("diff", "the last git diff that each root has printed", False),
        ("spans", "OpenTelemetry spans as OTLP JSON", True),
        ("atif", "ATIF v1.7 documents, one a root", True),
    ):
        view = views.add_parser(name, help=text)
        view.add_argument("folder", type=Path, help="the folder of the recorded run")
        if takes_output:
            view.add_argument("output", type=Path)
        if name == "directory":
            view.add_argument("--all", action="store_true", help="every root, not only the first")
        if name == "program":
            view.add_argument("--root", help="the invoke id of another root")
    check = views.add_parser("validate", help="check an ATIF document")
    check.add_argument("folder", type=Path, metavar="document")
    parts = views.add_parser("split", help="an ATIF document as a folder of files, a child each")
    parts.add_argument("folder", type=Path, metavar="document")
    parts.add_argument("output", type=Path)
    whole = views.add_parser("join", help="the document of such a folder")
    whole.add_argument("folder", type=Path)
    whole.add_argument("output", type=Path)
    replay = commands.add_parser("replay", help="run a program with the answers of a recorded run of it")
    replay.add_argument("source", help="the folder of the recorded run, or an ATIF document")
    replay.add_argument("--on-divergence", choices=("error", "live", "ignore"), default="error")
    replay.add_argument("script", help="the program; what follows are its own arguments")
    replay.add_argument("args", nargs=argparse.REMAINDER)
    resume = commands.add_parser("resume", help="go on with a recorded run by running its program again")
    resume.add_argument("folder", type=Path, help="the folder of the recorded run")
    resume.add_argument("--on-divergence", choices=("error", "live", "ignore"), default="error")
    resume.add_argument("--shards", type=int, default=1, help="as the run was recorded with (default 1)")
    resume.add_argument("script", help="the program; what follows are its own arguments")
    resume.add_argument("args", nargs=argparse.REMAINDER)


def run_trace(args: argparse.Namespace) -> int:
    try:
        return _on_documents(args) if args.view in ("validate", "split", "join") else _view(args)
    except (JazError, OSError, ValueError, KeyError) as error:
        print(f"jaz-actors: {error}", file=sys.stderr)
        return 1


def _on_documents(args: argparse.Namespace) -> int:
    from jaz_actors.recorders.atif_check import validate
    from jaz_actors.recorders.atif_files import join, split, write_whole

    def text(document: Any) -> str:
        return json.dumps(document, ensure_ascii=False, allow_nan=False, indent=2)

    if args.view == "join":
        files = {path.name: json.loads(path.read_text("utf-8")) for path in args.folder.glob("*.json")}
        write_whole(args.output, text(join(files)))
        return 0
    document = json.loads(args.folder.read_text("utf-8"))
    if args.view == "split":
        for name, part in split(document).items():
            write_whole(args.output / name, text(part))
        return 0
    problems = validate(document)
    print(*problems, sep="\n", end="\n" if problems else "")
    return 1 if problems else 0


def _view(args: argparse.Namespace) -> int:
    run = RecordedRun(args.folder)
    match args.view:
        case "stats":
            print(json.dumps(statistics(run), indent=2))
        case "directory":
            from jaz_actors.recorders.directory import write_directory

            write_directory(args.output, run.events(), all=args.all)
        case "html":
            from jaz_actors.recorders.html import page

            args.output.write_text(page(run.events()), encoding="utf-8")
        case "log":
            from jaz_actors.recorders.textlog import TextLog

            log = TextLog(sys.stdout)
            for event in run.events():
                log.add(event)
        case "program":
            from jaz_actors.recorders.program import write_workflow

            write_workflow(args.output, run.events(), root=args.root)
        case "diff":
            from jaz_actors.recorders.git_diff import extract_diffs

            for diff in extract_diffs(run.events()).values():
                print(diff.text, end="" if diff.text.endswith("\n") else "\n")
        case "spans":
            from jaz_actors.recorders.spans import export_json, spans

            args.output.write_bytes(export_json(spans(run.events())))
        case "atif":
            from jaz_actors.recorders.atif import Trajectories
            from jaz_actors.recorders.atif_files import write_documents

            trajectories = Trajectories()
            for event in run.events():
                trajectories.add(event)
            write_documents(args.output, trajectories.documents())
    return 0


def statistics(run: RecordedRun) -> dict[str, Any]:
    """Of the versions of invocations that count."""
    invocations = list(run.invocations().values())
    completions = [turn.completion for invocation in invocations for turn in invocation.turns()]
    outcomes = Counter(
        "unfinished" if (outcome := invocation.outcome) is None else outcome.__struct_config__.tag
        for invocation in invocations
    )
    costs = [c.usage.cost_usd for c in completions if c.usage.cost_usd is not None]
    return {
        "run_id": run.run_id,
        "invocations": len(invocations),
        "roots": sum("." not in invocation.path for invocation in invocations),
        "outcomes": dict(sorted(outcomes.items())),
        "turns": len(completions),
        "prompt_tokens": sum(c.usage.prompt_tokens or 0 for c in completions),
        "completion_tokens": sum(c.usage.completion_tokens or 0 for c in completions),
        "cost_usd": sum(costs) if costs else None,
        "versions": len(run.versions),
    }


def run_replay(args: argparse.Namespace) -> int:
    """Run a script under a replay, and say on stderr what was replayed and where it diverged."""
    from jaz_actors.replay import TrajectoryReplay

    replay = TrajectoryReplay(args.source, args.on_divergence)
    try:
        with replay:
            _run_script(args)
    finally:
        report = replay.report
        print(f"replayed {report.replayed}, live {report.live}, tools {report.tools}", file=sys.stderr)
        for divergence in report.divergences:
            print(f"diverged: {divergence}", file=sys.stderr)
    return 1 if report.divergences else 0


def _run_script(args: argparse.Namespace) -> None:
    sys.argv = [args.script, *args.args]
    sys.path.insert(0, str(Path(args.script).resolve().parent))
    runpy.run_path(args.script, run_name="__main__")


def run_resume(args: argparse.Namespace) -> int:
    """Run a script as `python script args` would, with its recorded answers."""
    from jaz_actors.record import NothingResumed, resuming
    from jaz_actors.replay import resume

    try:
        with resuming(args.folder, lambda: resume(args.folder, on_divergence=args.on_divergence, shards=args.shards)):
            _run_script(args)
    except NothingResumed as error:
        print(f"jaz-actors: {error}", file=sys.stderr)
        return 1
    return 0
