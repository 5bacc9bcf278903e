"""The gate's fresh rollouts: a few of the recipe's own prompts through verl's agent loops, and the trainer's log-probabilities.

Everything goes the way of a training step (agent loops, TransferQueue, worker group), with keys and a step of its own, and is
cleared again: neither the data loader nor the replay buffer sees it.
"""

from __future__ import annotations

import math
import time
import uuid
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import ray
import transfer_queue as tq
from verl import DataProto
from verl.utils import tensordict_utils as tu
from verl.utils.dataset.rl_dataset import collate_fn
from verl.workers.utils.padding import response_from_nested

from verl_musa.device import gate_worker
from verl_musa.device.gate_judge import Call, Sample

PROMPTS, SAMPLES = 8, 2
MAX_TOKENS = 512
"""Longest response of the gate, where the recipe allows longer ones."""
PARTITION = "train"
UID = "gate"
"""Beginning of the keys of the gate's prompts in the TransferQueue; no underscore, which ends a uid there."""
POLL_S = 0.1
ROLLOUT_S = 600.0


class RolloutError(RuntimeError):
    """The gate's rollouts did not end well."""


@dataclass(frozen=True)
class Rollouts:
    """What came of the gate's prompts.

    Attributes:
        messages: the chat of each prompt.
        samples: the trajectories.
        padded_ones: ones of the response mask in the padding of verl's padded batch.
        scores: the reward of each sample; empty where a colocated reward model gives it later.
    """

    messages: list[list[dict[str, Any]]]
    samples: list[Sample]
    padded_ones: int
    scores: list[float]


def response_length(trainer: Any) -> int:
    """Longest response that the gate asks for, in tokens."""
    return min(MAX_TOKENS, int(trainer.config.actor_rollout_ref.rollout.response_length))


def _data_parallel(trainer: Any) -> int:
    group = trainer.actor_rollout_wg
    if "actor" not in group._dispatch_info:
        group._dispatch_info["actor"] = group._query_dispatch_info("actor")
    return int(max(group._dispatch_info["actor"])) + 1


def roll_out(trainer: Any) -> tuple[list[list[dict[str, Any]]], list[str], dict[str, int]]:
    """Generate; return the chats, verl's keys of the trajectories, and the prompt index of each uid.

    Raises:
        RolloutError: a prompt failed, or not all ended in time.
    """
    multiple = math.lcm(_data_parallel(trainer), SAMPLES)
    rows = math.ceil(PROMPTS * SAMPLES / multiple) * multiple
    dataset = trainer.train_dataset
    batch_dict = collate_fn([dataset[index % len(dataset)] for index in range(rows // SAMPLES)])
    uids = [f"{UID}{uuid.uuid4().hex}" for _ in range(rows // SAMPLES)]
    batch_dict["uid"] = np.array(uids, dtype=object)
    batch_dict["__rollout_n__"] = np.array([SAMPLES] * len(uids), dtype=object)
    messages = [[dict(message) for message in chat] for chat in batch_dict["raw_prompt"]]
    batch = tu.get_tensordict(batch_dict)
    tu.assign_non_tensor_data(batch, "global_steps", trainer.global_steps)
    trainer._submit_batch_to_rollout(batch)
    _wait(uids)
    known = set(uids)
    keys = sorted(
        key for key in tq.kv_list(PARTITION)[PARTITION] if key.split("_")[0] in known and key not in known
    )
    return messages, keys, {uid: place for place, uid in enumerate(uids)}


def _wait(uids: list[str]) -> None:
    deadline = time.monotonic() + ROLLOUT_S
    while True:
        tags = (tq.kv_list(PARTITION) or {}).get(PARTITION, {})
        states = [tags.get(uid, {}).get("status") for uid in uids]
        if "failure" in states:
            raise RolloutError("an agent loop failed: see the agent-loop worker's log")
        if all(state == "finished" for state in states):
            return
        if time.monotonic() > deadline:
            done = sum(state == "finished" for state in states)
            raise RolloutError(f"{done} of {len(uids)} prompts were answered within {ROLLOUT_S:.0f} s")
        time.sleep(POLL_S)


def log_probs(trainer: Any, keys: list[str]) -> None:
    """Have the actor compute the log-probabilities of the trajectories, as verl does before an update.

    Raises:
        RolloutError: an agent loop with several outputs made a number of trajectories that does not divide.
    """
    rollout = trainer.config.actor_rollout_ref.rollout
    share, rest = divmod(len(keys), _data_parallel(trainer))
    if rest:
        raise RolloutError(
            f"the agent loop made {len(keys)} trajectories, which the trainer's ranks cannot share"
        )
    micro = rollout.get("log_prob_micro_batch_size_per_gpu") or share
    tags = tq.kv_list(PARTITION)[PARTITION]
    meta = tq.KVBatchMeta(partition_id=PARTITION, keys=keys, tags=[tags[key] for key in keys])
    meta.extra_info.update(
        {
            "calculate_entropy": False,
            "compute_loss": False,
            "temperature": rollout.temperature,
            "micro_batch_size_per_gpu": math.gcd(share, int(micro)),
        }
    )
    trainer.actor_rollout_wg.compute_log_prob(meta)


def collect(
    trainer: Any, keys: list[str], prompt_of: dict[str, int], calls: list[dict[str, Any]]
) -> tuple[list[Sample], int, list[float]]:
    """Read the trajectories back; return samples, ones of the mask in padding, and rewards."""
    fields = ["prompts", "responses", "response_mask", "log_probs"]
    if trainer.config.actor_rollout_ref.rollout.calculate_log_probs:
        fields.append("rollout_log_probs")
    if trainer.reward_loop_manager.reward_loop_worker_handles is not None:
        fields.append("rm_scores")
    data = tq.kv_batch_get(keys=keys, partition_id=PARTITION, select_fields=fields)
    data["log_probs"] = response_from_nested(data["log_probs"], data["response_mask"])
    columns = {name: [row.tolist() for row in data[name].unbind()] for name in fields}
    requests = _by_request(calls)
    samples = []
    for row, key in enumerate(keys):
        prompt, response = columns["prompts"][row], columns["responses"][row]
        samples.append(
            Sample(
                key=key,
                prompt=prompt_of[key.split("_")[0]],
                prompt_ids=prompt,
                response_ids=response,
                mask=[int(value) for value in columns["response_mask"][row]],
                calls=_take_calls(requests, prompt, response),
                rollout=columns["rollout_log_probs"][row] if "rollout_log_probs" in columns else None,
                trainer=columns["log_probs"][row],
            )
        )
    masks = data.select("response_mask")
    padded = DataProto(batch=masks.to_padded_tensor()).batch["response_mask"]
    ones = int(padded.sum()) - sum(sum(sample.mask) for sample in samples)
    scores = [float(sum(row)) for row in columns.get("rm_scores", [])]
    return samples, ones, scores


def _by_request(calls: list[dict[str, Any]]) -> list[list[Call]]:
    """The calls of each trajectory, in the order in which they were made."""
    grouped: dict[str, list[Call]] = defaultdict(list)
    for call in calls:
        grouped[call["request"]].append(Call(call["prompt_ids"], call["token_ids"]))
    return [sorted(group, key=lambda call: len(call.prompt_ids)) for group in grouped.values()]


def _take_calls(requests: list[list[Call]], prompt: list[int], response: list[int]) -> list[Call]:
    """Take out the trajectory with this prompt whose first answer begins this response; empty where there is none."""
    for place, group in enumerate(requests):
        first = group[0]
        begin = first.token_ids[: len(response)]
        if first.prompt_ids == prompt and response[: len(begin)] == begin:
            return requests.pop(place)
    return []


def record(trainer: Any, manager: Any, *, sleep: Callable[[], None]) -> Rollouts:
    """Roll out, let the replicas sleep, compute the trainer's log-probabilities, and read all of it back.

    Raises:
        RolloutError: see :func:`roll_out`.
    """
    workers = manager.agent_loop_workers
    limit = response_length(trainer)
    capped = limit if limit < int(trainer.config.actor_rollout_ref.rollout.response_length) else None
    ray.get([worker.__ray_call__.remote(gate_worker.start_recording, capped) for worker in workers])
    try:
        messages, keys, prompt_of = roll_out(trainer)
    finally:
        noted = ray.get([worker.__ray_call__.remote(gate_worker.stop_recording) for worker in workers])
    sleep()
    log_probs(trainer, keys)
    calls = [call for part in noted for call in part]
    samples, ones, scores = collect(trainer, keys, prompt_of, calls)
    return Rollouts(messages, samples, ones, scores)


def clear() -> None:
    """Take the gate's prompts and trajectories out of the TransferQueue, however far they came."""
    keys = [key for key in (tq.kv_list(PARTITION) or {}).get(PARTITION, {}) if key.startswith(UID)]
    if keys:
        tq.kv_clear(keys=keys, partition_id=PARTITION)
