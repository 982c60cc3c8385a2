"""`python -m jaz_actors.backends.embedded --model-path DIR`: serve a model folder until SIGTERM or SIGINT."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from jaz_actors.backends.embedded.launch import TINY_POLICY
from jaz_actors.backends.embedded.lifeline import end_with_parent

OWN_PARENT = -1


def main(argv: list[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    if args.exit_with_parent is not None:
        parent = os.getppid() if args.exit_with_parent == OWN_PARENT else args.exit_with_parent
        end_with_parent(parent, lambda: os._exit(1))
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    try:
        from jaz_actors.backends.embedded.serve import serve
    except ImportError as error:
        print(f'{error}; the embedded engine needs: pip install "jaz-actors[embedded]"', file=sys.stderr)
        return 1
    return serve(
        args.model_path,
        host=args.host,
        port=args.port,
        port_file=args.port_file,
        rows=args.slots,
        threads=args.threads,
        context_length=args.context_length,
        weight_version=args.weight_version,
        token_log=args.token_log,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="jaz-actors serve", description="Serve a Hugging Face causal-LM folder on CPU."
    )
    add = parser.add_argument
    add("--model-path", type=Path, default=TINY_POLICY, help="model folder; default: the tiny policy")
    add("--host", default="127.0.0.1")
    add("--port", type=int, default=30000, help="0 picks a free one")
    add("--port-file", type=Path, default=None, help="write the port there once ready")
    add("--slots", type=int, default=64, help="sequences generated at once")
    add("--threads", type=int, default=1, help="torch threads of one operation")
    add("--context-length", type=int, default=None, help="tokens of prompt and output; default: the model's own")
    add("--weight-version", default="default", help="label of the weights in the folder")
    add("--token-log", type=Path, default=None, help="append a JSON line for each sequence that was generated")
    add(
        "--exit-with-parent",
        type=int,
        nargs="?",
        const=OWN_PARENT,
        default=None,
        metavar="PID",
        help="end when the starting process, PID where given, does",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
