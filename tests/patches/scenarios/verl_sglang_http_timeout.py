"""Every request of the asynchronous adapter must be bound by the adapter's timeout, and that be 600 s by default."""

import asyncio
import contextlib
import os
from types import SimpleNamespace
from typing import Any

from support import load

module = load(
    "verl.workers.rollout.sglang_rollout.http_server_engine",
    distribution="verl",
    stubs=("aiohttp", "requests", "sglang"),
)
seen: list[float] = []


class Response:
    status = 204
    content_length = 0

    async def __aenter__(self) -> Any:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None


class Session:
    def post(self, _url: str, *, json: object, timeout: float) -> Response:
        seen.append(timeout)
        return Response()


@contextlib.asynccontextmanager
async def session(_self: Any) -> Any:
    yield Session()


module.AsyncHttpServerAdapter._get_session = session
module.ServerArgs = lambda **options: SimpleNamespace(host="h", port=1, node_rank=0, **options)
adapter = module.AsyncHttpServerAdapter(launch_server=False)
asyncio.run(adapter.release_memory_occupation(["weights"]))
if seen != [600.0]:
    raise SystemExit(f"a request is bound by {seen[0]} s")
short = module.AsyncHttpServerAdapter(timeout=10.0, launch_server=False)
asyncio.run(short.release_memory_occupation())
asyncio.run(short._make_async_request("generate", {}, timeout=3.0))
if seen[1:] != [10.0, 3.0]:
    raise SystemExit(f"bounds that were given did not stay: {seen}")
os.environ["VERL_MUSA_SGLANG_TIMEOUT_S"] = "900"
if module.AsyncHttpServerAdapter(launch_server=False).timeout != 900.0:
    raise SystemExit("the environment's bound is not used")
os.environ["VERL_MUSA_SGLANG_TIMEOUT_S"] = "-1"
try:
    module.AsyncHttpServerAdapter(launch_server=False)
except Exception as error:
    if "not a time limit" not in str(error):
        raise
else:
    raise SystemExit("a negative bound was taken")
