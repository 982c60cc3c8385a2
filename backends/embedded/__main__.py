"""`python -m jaz_actors.backends.embedded --model-path DIR`: serve a model folder until SIGTERM."""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import socket
import sys
from pathlib import Path

PR_SET_PDEATHSIG = 1


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="jaz-actors serve", description="Serve a Hugging Face causal-LM folder on CPU.")
    parser.add_argument("--model-path", type=Path, default=None, help="model folder; default: the tiny policy")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=30000, help="0 picks a free one")
    parser.add_argument("--port-file", type=Path, default=None, help="write the port there once ready")
    parser.add_argument("--slots", type=int, default=64, help="sequences generated at once")
    parser.add_argument("--threads", type=int, default=1, help="torch threads of one operation")
    parser.add_argument("--exit-with-parent", action="store_true", help="end when the starting process does")
    args = parser.parse_args(argv)
    if args.exit_with_parent:
        parent = os.getppid()
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent or parent == 1:
            return 1
    return serve(args)


def serve(args: argparse.Namespace) -> int:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    try:
        import torch
        import uvicorn
        from transformers import AutoModelForCausalLM, AutoTokenizer
        from transformers.utils import logging as transformers_logging
    except ImportError as error:
        print(f'{error}; the embedded engine needs: pip install "jaz-actors[embedded]"', file=sys.stderr)
        return 1
    from jaz_actors.backends.embedded.engine import Engine
    from jaz_actors.backends.embedded.launch import TINY_POLICY
    from jaz_actors.backends.embedded.server import Server

    transformers_logging.disable_progress_bar()
    torch.set_num_threads(args.threads)
    path = args.model_path or TINY_POLICY
    if not (path / "config.json").is_file():
        print(f"{path} is no model folder: it has no config.json", file=sys.stderr)
        return 1
    model = AutoModelForCausalLM.from_pretrained(path, local_files_only=True, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
    engine = Engine(model, tokenizer, slots=args.slots)
    engine.start()
    listener = socket.create_server((args.host, args.port), backlog=2048)
    port = listener.getsockname()[1]
    app = Server(engine, str(path)).app()
    server = uvicorn.Server(
        uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=2, lifespan="off")
    )
    if args.port_file is not None:
        unfinished = args.port_file.with_suffix(".part")
        unfinished.write_text(str(port))
        unfinished.replace(args.port_file)
    print(f"serving {path} on http://{args.host}:{port}", flush=True)
    try:
        server.run(sockets=[listener])
    finally:
        engine.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
