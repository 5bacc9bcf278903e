"""verl must find the fields of a ServerArgs that is a msgspec structure, as SGLang 0.5.20 and later have it."""

import sys

from support import SKIP, Stub, load

try:
    import msgspec
except ImportError:
    sys.stderr.write("msgspec is not installed here\n")
    raise SystemExit(SKIP) from None

http_server = Stub("sglang.srt.entrypoints.http_server")
http_server.ServerArgs = msgspec.defstruct("ServerArgs", [("enable_weights_cpu_backup", bool)])
sys.modules["sglang.srt.entrypoints.http_server"] = http_server
module = load(
    "verl.workers.rollout.sglang_rollout.async_sglang_server",
    distribution="verl",
    stubs=(
        "ray", "sglang", "torch", "verl.plugin", "verl.utils", "verl.workers.config", "verl.workers.rollout.replica",
        "verl.workers.rollout.sglang_rollout.sglang_rollout", "verl.workers.rollout.sglang_rollout.utils",
        "verl.workers.rollout.utils",
    ),
)  # fmt: skip
names = [field.name for field in module.dataclasses.fields(module.ServerArgs)]
if names != ["enable_weights_cpu_backup"]:
    raise SystemExit(f"found {names}")
