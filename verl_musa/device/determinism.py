"""Making two runs of the same seed equal: stable sample order, and a sampling seed for each request.

verl 0.9.1's synchronous trainer collects samples in the order in which they finish, which differs from run to run, and
SGLang draws from one generator for whatever is in its batch. Both pieces plug into verl's own configuration:

* ``trainer.v1.sampler.custom_sampler``: OrderedReplayBuffer,
* ``actor_rollout_ref.rollout.agent.agent_loop_manager_class``: SeededAgentLoopManager.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import ray
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ, AgentLoopWorkerTQ
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

# verl's own interval is 2 s, most of a step of a tiny model; each poll is one small RPC.
POLL_INTERVAL_S = 0.2


class OrderedReplayBuffer(ReplayBuffer):
    """verl's synchronous replay buffer, handing samples out in dispatch order instead of completion order.

    ``trainer.v1.sampler.sampler_kwargs.poll_interval`` sets the seconds between two looks at the queue.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        options = kwargs.get("sampler_kwargs") or {}
        kwargs.setdefault("poll_interval", float(options.get("poll_interval", POLL_INTERVAL_S)))
        super().__init__(*args, **kwargs)

    def _select_prompt_uids(
        self, partition_id: str, sampleable_keys: set[str], batch_size: int
    ) -> tuple[list[str], dict[str, dict[str, Any]], dict[str, int]]:
        """Choose the oldest prompts; among those of one step, in the order in which they were dispatched."""
        steps = dict(self.prompt_global_steps[partition_id])
        position = {uid: place for place, uid in enumerate(steps)}
        ordered = sorted(
            sampleable_keys, key=lambda uid: (steps.get(uid, 0), position.get(uid, len(position)))
        )
        return ordered[:batch_size], dict(self.partitions[partition_id]), steps

    def _materialize_batch(
        self,
        partition_id: str,
        selected_prompt_uids: list[str],
        partition_snapshot: dict[str, dict[str, Any]],
    ) -> KVBatchMeta:
        """Hand out the trajectories of the chosen prompts by (prompt, session, output)."""
        place = {uid: index for index, uid in enumerate(selected_prompt_uids)}
        ordered = dict(sorted(partition_snapshot.items(), key=lambda item: trajectory_order(item[0], place)))
        return super()._materialize_batch(partition_id, selected_prompt_uids, ordered)


def trajectory_order(key: str, place: dict[str, int]) -> tuple[int, int, int]:
    """Return the sort key of a trajectory ``{uid}_{session}_{output}``.

    Args:
        key: verl's trajectory key.
        place: position of each chosen prompt; others sort last.

    Raises:
        ValueError: ``key`` has another form, that is, verl changed it.
    """
    parts = key.rsplit("_", 2)
    if len(parts) != 3:  # noqa: PLR2004 - the three parts named above
        raise ValueError(f"found trajectory key {key!r}; expected {{uid}}_{{session}}_{{output}}")
    return (place.get(parts[0], len(place)), int(parts[1]), int(parts[2]))


def request_seed(run_seed: int, trajectory: dict[str, Any], session: int, prompt: Any) -> int:
    """Return the sampling seed of one request: a 62-bit number that depends on nothing but its place in the run.

    Args:
        run_seed: ``data.seed`` of the run.
        trajectory: verl's trajectory information: step, sample_index, validate.
        session: index within the group of ``rollout.n`` samples of one prompt.
        prompt: the chat messages, so that prompts without an index of their own differ too.
    """
    place = [
        run_seed,
        int(trajectory["step"]),
        str(trajectory["sample_index"]),
        bool(trajectory["validate"]),
        session,
        prompt,
    ]
    digest = hashlib.sha256(json.dumps(place, sort_keys=True, default=str).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 2


_PlainWorker = AgentLoopWorkerTQ.__ray_metadata__.modified_class


class SeededAgentLoopWorker(_PlainWorker):  # type: ignore[misc, valid-type]
    """verl's agent-loop worker, giving each request its own sampling seed."""

    async def _run_agent_loop(
        self, sampling_params: dict[str, Any], trajectory: dict[str, Any], **kwargs: Any
    ) -> Any:
        run_seed = self.config.data.get("seed", None)
        if run_seed is None:
            raise ValueError(
                "data.seed: found null; expected a number, which seeded sampling derives its seeds from"
            )
        prompt = kwargs.get("raw_prompt")
        messages = [dict(message) for message in prompt] if prompt is not None else None
        seed = request_seed(int(run_seed), trajectory, int(kwargs["session_id"]), messages)
        return await super()._run_agent_loop({**sampling_params, "sampling_seed": seed}, trajectory, **kwargs)


class SeededAgentLoopManager(AgentLoopManagerTQ):
    """verl's agent-loop manager with seeded workers."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.agent_loop_workers_class = ray.remote(SeededAgentLoopWorker)
