"""Calls a reward function on a few rows, in a process of its own. Standard library only; run by path, never imported.

    python _probe.py JOB.json RESULT.json
    python _probe.py --serve JOB.json

JOB: {"file", "function", "kwargs", "seconds", "reward_model", "samples": [{"data_source", "solution_str", "ground_truth",
"extra_info"}]}. RESULT: {"scores": [...]} or {"error": {"message", "line", "sample"}}. When the function hangs, the
stack is written to RESULT.json.stack and the process ends with exit code 1. Where ``reward_model`` is true the function also
gets what verl passes then, a server's address and a tokenizer; both are stand-ins here.

With --serve the samples come in lines ``{"samples": [...]}`` on standard input, each answered with a line
``{"results": [score or {"error", "line"}, ...]}`` after a first line ``{"ready": true}``; one error does not end it, and whoever started
it bounds its time. What the function prints goes to standard error.
"""

from __future__ import annotations

import asyncio
import faulthandler
import importlib.util
import inspect
import json
import math
import os
import sys
import threading
import traceback
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

# What a reward model's server answers on the routes that verl 0.9.1's own code and examples ask: logit 0, or the text "0".
ANSWERS: dict[str, dict[str, Any]] = {
    "/v1/embeddings": {"data": [{"index": 0, "embedding": [0.0]}]},
    "/classify": {"data": [{"index": 0, "probs": [0.5]}]},
    "/v1/chat/completions": {"choices": [{"index": 0, "message": {"role": "assistant", "content": "0"}}]},
    "/v1/completions": {"choices": [{"index": 0, "text": "0"}]},
}


class _RewardModel(BaseHTTPRequestHandler):
    """Answers as a reward model's server does, always the same."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        answer = ANSWERS.get(self.path)
        body = json.dumps(answer or {"error": f"no route {self.path}"}).encode()
        self.send_response(404 if answer is None else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


class _Tokenizer:
    """The tokenizer's part that a reward function needs to put a chat into words."""

    bos_token = eos_token = None

    def apply_chat_template(self, chat: list[dict[str, str]], **_: Any) -> str:
        return "".join(f"{message['role']}: {message['content']}\n" for message in chat)


def _stand_ins() -> dict[str, Any]:
    """Start the server, which ends with this process, and return verl's two arguments."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _RewardModel)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"127.0.0.1:{server.server_address[1]}"
    return {"reward_router_address": address, "reward_model_tokenizer": _Tokenizer()}


def _line_in(file: str, error: BaseException) -> int | None:
    """Line of the innermost frame of ``error`` that lies in ``file``."""
    if isinstance(error, SyntaxError) and error.filename == file:
        return error.lineno
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return lines[-1] if lines else None


def _load(file: str, function: str) -> Any:
    spec = importlib.util.spec_from_file_location("reward_under_check", file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return getattr(module, function)


def _score(function: Any, sample: dict[str, Any], kwargs: dict[str, Any]) -> float:
    value = function(**sample, **kwargs)
    if inspect.iscoroutine(value):
        value = asyncio.run(value)
    if isinstance(value, dict):
        if "score" not in value:
            raise TypeError(
                f"returned a dict without 'score', with {', '.join(map(str, value)) or 'no keys'}"
            )
        value = value["score"]
    if value is None or isinstance(value, str | bytes):
        raise TypeError(f"returned {value!r}, not a number")
    try:
        score = float(value)
    except (TypeError, ValueError):
        raise TypeError(f"returned {type(value).__name__} {value!r}, not a number") from None
    if not math.isfinite(score):
        raise ValueError(f"returned {score}, not a finite number")
    return score


def _run(job: dict[str, Any]) -> dict[str, Any]:
    sample: dict[str, Any] | None = None
    try:
        function = _load(job["file"], job["function"])
        passed = _stand_ins() if job.get("reward_model") else {}
        scores = []
        for sample in job["samples"]:
            scores.append(_score(function, dict(sample), {**passed, **job["kwargs"]}))
    except BaseException as error:  # noqa: BLE001  (SystemExit and KeyboardInterrupt of the function included)
        message = f"{type(error).__name__}: {error}"
        return {"error": {"message": message, "line": _line_in(job["file"], error), "sample": sample}}
    return {"scores": scores}


def _result(
    function: Any, sample: dict[str, Any], kwargs: dict[str, Any], file: str
) -> float | dict[str, Any]:
    try:
        return _score(function, dict(sample), kwargs)
    except BaseException as error:  # noqa: BLE001  (SystemExit and KeyboardInterrupt of the function included)
        return {"error": f"{type(error).__name__}: {error}"[:500], "line": _line_in(file, error)}


def _serve(job_file: Path) -> None:
    job = json.loads(job_file.read_text(encoding="utf-8"))
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    try:
        function = _load(job["file"], job["function"])
        kwargs = {**(_stand_ins() if job.get("reward_model") else {}), **job["kwargs"]}
        first: dict[str, Any] = {"ready": True}
    except BaseException as error:  # noqa: BLE001  (as in _run)
        first = {"error": f"{type(error).__name__}: {error}", "line": _line_in(job["file"], error)}
    answers.write(json.dumps(first) + "\n")
    answers.flush()
    if "error" in first:
        return
    for line in sys.stdin:
        samples = json.loads(line)["samples"]
        results = [_result(function, sample, kwargs, job["file"]) for sample in samples]
        answers.write(json.dumps({"results": results}) + "\n")
        answers.flush()


def _main(job_file: Path, result_file: Path) -> None:
    job = json.loads(job_file.read_text(encoding="utf-8"))
    with Path(f"{result_file}.stack").open("w", encoding="utf-8") as stack:
        faulthandler.dump_traceback_later(job["seconds"], exit=True, file=stack)
        result = _run(job)
        faulthandler.cancel_dump_traceback_later()
    result_file.write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        _serve(Path(sys.argv[2]))
    else:
        _main(Path(sys.argv[1]), Path(sys.argv[2]))
