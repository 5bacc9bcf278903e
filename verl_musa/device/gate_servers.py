"""Reading the digests of a rollout server's weights, inside it and from the driver.

SGLang has an endpoint for it (``/weights_checker``); its own hashes are of fused tensors and, in 0.5.19, need CUDA, so a hook
(group ``sglang.srt.plugins``) answers one more action there. vLLM's workers get one more method and write a file.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path
from types import ModuleType
from typing import Any

import ray

from verl_musa.device import gate_digest
from verl_musa.device.expect import write_atomically

ACTION = "verl_musa_digests"
HANDLER = "sglang.srt.utils.weight_checker.WeightChecker.handle"
EXTENSION = "verl.workers.rollout.vllm_rollout.utils"
ANSWER_S = 600.0


class ServerError(RuntimeError):
    """A rollout server's weights cannot be read; the message says why."""


def register_sglang() -> None:
    """Hook SGLang's weight checker; called by the project's SGLang plugin where the gate is asked for."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(HANDLER, answer, HookType.AROUND)


def answer(original: Any, checker: Any, action: str, **kwargs: Any) -> Any:
    """Answer our action with the digests of this rank's weights, in the form of SGLang's own checksums.

    Args:
        original: SGLang's ``handle``.
        checker: the WeightChecker.
        action: what is asked for; others than ours go to SGLang.
        kwargs: passed on.
    """
    if action != ACTION:
        return original(checker, action, **kwargs)
    return {
        "checksums": gate_digest.digests(checker._get_model()),
        "per_gpu_checksum": "",
        "parallelism_info": checker._parallelism_info().model_dump(),
    }


def extend_vllm(module: ModuleType) -> None:
    """Give verl's vLLM worker extension a method that writes this rank's digests below a folder."""

    def write_digests(self: Any, folder: str) -> None:
        rank = int(getattr(self, "rank", 0))
        model = self.model_runner.model
        write_atomically(Path(folder) / f"rank-{rank}.json", json.dumps(gate_digest.digests(model)))

    module.vLLMColocateWorkerExtension.verl_musa_write_digests = write_digests


def read(replicas: list[Any], rollout: str, scratch: Path) -> dict[str, dict[str, str]]:
    """Digests by replica and rank (``replica 0 rank 1``), by tensor.

    Args:
        replicas: verl's rollout replicas.
        rollout: ``actor_rollout_ref.rollout.name``.
        scratch: folder for files of the vLLM workers.

    Raises:
        ServerError: a server does not answer, or is of a kind that cannot be read.
    """
    readers = {"sglang": _read_sglang, "vllm": _read_vllm}
    if rollout not in readers:
        raise ServerError(f"weights of a rollout {rollout!r} cannot be read; known: {', '.join(readers)}")
    found: dict[str, dict[str, str]] = {}
    for number, replica in enumerate(replicas):
        ranks = readers[rollout](replica.servers[0], scratch / f"replica-{number}")
        found.update({f"replica {number} rank {rank}": tensors for rank, tensors in ranks.items()})
    return found


def _read_sglang(server: Any, _scratch: Path) -> dict[int, dict[str, str]]:
    host, port = ray.get(server.get_server_address.remote(), timeout=ANSWER_S)
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    request = urllib.request.Request(
        f"http://{address}/weights_checker",
        data=json.dumps({"action": ACTION}).encode(),
        headers={"Content-Type": "application/json"},
    )
    # No proxy of the environment: the server is in the cluster.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=ANSWER_S) as reply:
            body = json.load(reply)
    except urllib.error.HTTPError as error:
        said = error.read(500).decode(errors="replace")
        raise ServerError(f"SGLang refuses /weights_checker: HTTP {error.code} {said}") from error
    except (OSError, ValueError) as error:
        raise ServerError(f"SGLang does not answer /weights_checker: {error}") from error
    return {int(info["parallelism_info"]["tp_rank"]): info["checksums"] for info in body.get("ranks", [])}


def _read_vllm(server: Any, scratch: Path) -> dict[int, dict[str, str]]:
    scratch.mkdir(parents=True, exist_ok=True)
    for old in scratch.glob("rank-*.json"):
        old.unlink()
    try:
        ray.get(
            server.collective_rpc.remote("verl_musa_write_digests", args=(str(scratch),)), timeout=ANSWER_S
        )
    except (ray.exceptions.RayError, ray.exceptions.GetTimeoutError) as error:
        raise ServerError(f"vLLM's workers gave no digests: {str(error).strip().splitlines()[-1]}") from error
    return {
        int(path.stem.rpartition("-")[2]): json.loads(path.read_text(encoding="utf-8"))
        for path in sorted(scratch.glob("rank-*.json"))
    }
