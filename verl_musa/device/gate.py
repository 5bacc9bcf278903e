"""The day-0 correctness gate inside the job: after the workers and servers are up and before step 1.

verl has no hook between the two, so ``PPOTrainer.fit`` is wrapped as soon as verl's trainer module is imported, where
VERL_MUSA_GATE asks for the gate: ``before`` trains afterwards unless a check failed, ``only`` ends the job. The verdicts go to
``<run directory>/logs/gate.json``. Everything that the gate changes (weights, generators, queue) is put back.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import ray

from verl_musa.device import gate_judge as judge
from verl_musa.device import gate_reward
from verl_musa.device.expect import RUN_DIR_ENV, write_atomically
from verl_musa.device.gate_judge import Finding
from verl_musa.device.gate_judge_weights import Weights, judge_lm_head, judge_weight_sync

logger = logging.getLogger(__name__)

GATE_ENV = "VERL_MUSA_GATE"
BEFORE, ONLY = "before", "only"
SCHEMA = 1
CALL_S = 900.0
"""Longest time for one call into the workers, or one answer of the reference."""
DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "half": "float16"}


class GateFailedError(RuntimeError):
    """A check of the gate failed: training does not start."""


def asked() -> str | None:
    """``before``, ``only``, or None where no gate is asked for.

    Raises:
        ValueError: VERL_MUSA_GATE holds something else.
    """
    mode = os.environ.get(GATE_ENV) or None
    if mode not in {None, BEFORE, ONLY}:
        raise ValueError(f"{GATE_ENV}: found {mode!r}; expected {BEFORE} or {ONLY}")
    return mode


def install(module: ModuleType) -> None:
    """Wrap ``fit`` of verl's trainer (module ``verl.trainer.ppo.v1.trainer_base``), where the gate is asked for."""
    if asked() is not None:
        module.PPOTrainer.fit = gated(module.PPOTrainer.fit)


def gated(fit: Callable[..., Any]) -> Callable[..., Any]:
    """``fit`` with the gate before it.

    Raises:
        GateFailedError: from the wrapped function, when a check failed.
    """

    @functools.wraps(fit)
    def with_gate(trainer: Any, agent_loop_manager: Any) -> Any:
        if trainer.global_steps > 0:
            logger.warning("the gate is left out: this run goes on after step %d", trainer.global_steps)
            write(
                {
                    "schema": SCHEMA,
                    "skipped": f"the run goes on after step {trainer.global_steps}",
                    "checks": [],
                }
            )
        else:
            run(trainer, agent_loop_manager)
        return None if asked() == ONLY else fit(trainer, agent_loop_manager)

    return with_gate


def logs() -> Path:
    """The run's logs folder; the working directory where the job is started by hand without a run."""
    folder = os.environ.get(RUN_DIR_ENV)
    return Path(folder, "logs") if folder else Path.cwd()


def write(report: dict[str, Any]) -> None:
    """Write the verdicts."""
    write_atomically(logs() / "gate.json", json.dumps(report, indent=1) + "\n")


def run(trainer: Any, manager: Any) -> None:
    """Run the gate, write its verdicts and print them.

    Raises:
        GateFailedError: a check failed, and the job is to train afterwards.
    """
    from verl_musa.device import gate_plant

    started = time.monotonic()
    plants = gate_plant.asked()
    trainer.agent_loop_manager = manager  # as fit itself does first: dispatching prompts needs it
    with _reference(trainer) as reference:
        checks, figures = _Examination(trainer, manager, reference).examine()
        report: dict[str, Any] = {"schema": SCHEMA, "checks": checks, "figures": figures}
        figures["seconds"] = round(time.monotonic() - started, 2)
        for name in plants:
            report.setdefault("planted", {})[name] = _planted(name, trainer, manager, reference)
    write(report)
    for found in checks:
        sys.stdout.write(f"gate: {found['status']:<7} {found['check']}: {found['evidence']}\n")
    sys.stdout.flush()
    failed = [found for found in checks if found["status"] == "FAIL"]
    if failed and asked() != ONLY:
        names = ", ".join(found["check"] for found in failed)
        raise GateFailedError(f"{names} failed: {failed[0]['evidence']}")


def _planted(name: str, trainer: Any, manager: Any, reference: Any) -> list[Finding]:
    from verl_musa.device import gate_plant

    examination = _Examination(trainer, manager, reference)
    with gate_plant.planted(name, trainer.actor_rollout_wg.workers, manager.agent_loop_workers):
        examination.sync()
        checks, _ = examination.examine()
    examination.sync()
    return checks


def model_folder(trainer: Any) -> Path:
    """The folder that the recipe's model lies in."""
    return Path(str(trainer.config.actor_rollout_ref.model.path))


@contextlib.contextmanager
def _reference(trainer: Any) -> Iterator[Any]:
    """The Hugging Face process, or the reason (text) why there is none."""
    from omegaconf import OmegaConf

    from verl_musa.device import gate_hf

    folder, model = model_folder(trainer), trainer.config.actor_rollout_ref.model
    if not folder.is_dir():
        yield f"{folder} is no local folder"
        return
    override = OmegaConf.to_container(model.get("override_config") or OmegaConf.create({}), resolve=True)
    plain = {
        name: value for name, value in override.items() if name not in {"attn_implementation", "model_config"}
    }
    with gate_hf.Reference(
        folder,
        trust=bool(model.get("trust_remote_code", False)),
        override=plain,
        log=logs() / "gate-reference.log",
    ) as process:
        yield process


def dtypes(config: Any) -> dict[str, str]:
    """What ``trainer`` and ``rollout`` compute in, by torch's names, from verl's ``actor_rollout_ref``."""
    actor = config.actor
    if actor.strategy == "megatron":
        trainer = actor.megatron.get("dtype", None) or "bfloat16"
    else:
        engine = actor.get("fsdp_config", None) or {}
        mixed = engine.get("mixed_precision", None) or {}
        trainer = mixed.get("param_dtype", None) or engine.get("dtype", None) or "bfloat16"
    names = {"trainer": str(trainer), "rollout": str(config.rollout.dtype)}
    return {role: DTYPES.get(name, name) for role, name in names.items()}


class _Examination:
    """One pass over all checks that need the job."""

    def __init__(self, trainer: Any, manager: Any, reference: Any) -> None:
        self._trainer, self._manager, self._reference = trainer, manager, reference
        self._config = trainer.config.actor_rollout_ref
        self._dtypes = dtypes(self._config)
        self._unreadable = ""
        self._awake = True
        self._asked: list[str] = []
        self._silent = ""
        self._figures: dict[str, Any] = {"dtypes": self._dtypes}

    def examine(self) -> tuple[list[Finding], dict[str, Any]]:
        """Return the findings and the figures."""
        from verl_musa.device import gate_worker

        mine = gate_worker.random_state()
        self._call(gate_worker.keep_random_state)
        try:
            return self._examine(), self._figures
        finally:
            self._call(gate_worker.restore_random_state)
            gate_worker.set_random_state(mine)

    def _examine(self) -> list[Finding]:
        from verl_musa.device import gate_rollout

        held = self._replicas()
        rollouts, broken = None, ""
        self._begin("head")
        try:
            rollouts = gate_rollout.record(self._trainer, self._manager, sleep=self._sleep)
            self._ask(rollouts)
        except Exception as error:  # noqa: BLE001 - a check that breaks is UNKNOWN, and hides no other
            broken = f"{type(error).__name__}: {error}"
            traceback.print_exc()
        finally:
            gate_rollout.clear()
        before, during, after = self._weights(held)
        answers = self._answers()
        found = [
            self._broken(check, broken)
            for check in (judge.LOGPROBS, judge.RESPONSE_MASK, judge.CHAT_TEMPLATE)
        ]
        if rollouts is not None:
            try:
                found = self._judge_rollouts(rollouts, answers)
            except (LookupError, TypeError, ValueError) as error:
                # Rollouts of a form that the judges do not know must not stop a training.
                traceback.print_exc()
                reason = f"they have another form than expected: {type(error).__name__}: {error}"
                found = [self._broken(check["check"], reason) for check in found]
        head = answers.get("head") or {}
        return [
            found[0],
            judge_weight_sync(before, during, after, missing=self._unreadable),
            *found[1:],
            judge_lm_head(before, tied=head.get("tied"), folder_head=head.get("folder", "")),
            *gate_reward.check(self._trainer, logs()),
        ]

    @staticmethod
    def _broken(check: str, reason: str) -> Finding:
        return judge.finding(
            check, "UNKNOWN", f"the rollouts could not be used: {reason}", "see the job's log"
        )

    # ------------------------------------------------------------------ weights

    def _call(self, function: Any, *arguments: Any) -> list[Any]:
        """Call ``function(worker, *arguments)`` in every trainer worker."""
        workers = self._trainer.actor_rollout_wg.workers
        return list(ray.get([w.__ray_call__.remote(function, *arguments) for w in workers], timeout=CALL_S))

    def _sleep(self) -> None:
        """Let the replicas on the trainer's devices release their memory, once."""
        if self._awake:
            self._trainer.checkpoint_manager.sleep_replicas()
        self._awake = False

    def sync(self) -> None:
        """Bring the trainer's weights to every replica, the way verl does after loading a checkpoint."""
        self._sleep()
        self._trainer.on_init_end()
        self._awake = True

    def _replicas(self) -> dict[str, dict[str, str]]:
        from verl_musa.device import gate_servers

        managers = [
            self._trainer.llm_server_manager,
            getattr(self._trainer, "standalone_server_manager", None),
        ]
        replicas = [
            replica for manager in managers if manager is not None for replica in manager.get_replicas()
        ]
        try:
            return gate_servers.read(replicas, str(self._config.rollout.name), logs() / "gate-weights")
        except gate_servers.ServerError as error:
            self._unreadable = str(error)
            return {}

    def _export(self) -> dict[str, list[list[str]]]:
        from verl_musa.device import gate_worker

        ranks = int(self._config.rollout.tensor_model_parallel_size)
        exports = self._call(gate_worker.export_digests, [self._dtypes["rollout"]], ranks)
        return dict(next(export for export in exports if export))

    def _weights(self, held: dict[str, dict[str, str]]) -> tuple[Weights, Weights, Weights]:
        """Digests as training would start, with the trainer's weights perturbed and synced, and restored."""
        from verl_musa.device import gate_worker

        self._sleep()
        before = Weights(self._export(), held)
        self._figures["tensors"] = len(before.trainer)
        try:
            self._figures["perturbed_parameters"] = sum(self._call(gate_worker.perturb))
            self.sync()
            during = Weights(self._export(), self._replicas())
        finally:
            self._sleep()
            self._call(gate_worker.restore)
            self.sync()
        return before, during, Weights(self._export(), self._replicas())

    # ------------------------------------------------------------------ rollouts and reference

    def _begin(self, operation: str, **arguments: Any) -> None:
        """Send the reference a request; it computes while the job goes on. :meth:`_answers` waits for the answers."""
        from verl_musa.device import gate_hf

        if isinstance(self._reference, str):
            self._silent = self._reference
            return
        try:
            self._reference.begin(operation, **arguments)
            self._asked.append(operation)
        except gate_hf.ReferenceFailedError as error:
            self._silent = str(error)

    def _ask(self, rollouts: Any) -> None:
        """Have the reference render the prompts and compute the responses' log-probabilities."""
        from omegaconf import OmegaConf

        from verl_musa.device import gate_hf

        kwargs = self._trainer.config.data.get("apply_chat_template_kwargs") or OmegaConf.create({})
        self._begin(
            "prompts", messages=rollouts.messages, kwargs=OmegaConf.to_container(kwargs, resolve=True)
        )
        self._silent = self._silent or gate_hf.too_large(model_folder(self._trainer))
        if self._silent:
            return
        sequences = [
            {"ids": sample.prompt_ids + sample.response_ids, "start": len(sample.prompt_ids)}
            for sample in rollouts.samples
        ]
        self._begin(
            "logprobs",
            sequences=sequences,
            temperature=float(self._config.rollout.temperature),
            dtypes=sorted({"float32", self._dtypes["trainer"]}),
        )

    def _answers(self) -> dict[str, Any]:
        from verl_musa.device import gate_hf

        answers: dict[str, Any] = {}
        for operation in self._asked:
            try:
                answers[operation] = self._reference.result(timeout_s=CALL_S)
            except gate_hf.ReferenceFailedError as error:
                answers[f"{operation}-missing"] = str(error)
        return answers

    def _judge_rollouts(self, rollouts: Any, answers: dict[str, Any]) -> list[Finding]:
        from verl_musa.device import gate_rollout

        self._figures["samples"] = len(rollouts.samples)
        self._figures["mean_reward"] = (
            sum(rollouts.scores) / len(rollouts.scores) if rollouts.scores else None
        )
        prompts = answers.get("prompts") or {}
        eos = (answers.get("head") or {}).get("eos") or [self._trainer.tokenizer.eos_token_id]
        return [
            judge.judge_logprobs(
                rollouts.samples,
                dtypes=self._dtypes,
                reference=answers.get("logprobs"),
                reference_missing=self._silent or answers.get("logprobs-missing", ""),
            ),
            judge.judge_response_mask(
                rollouts.samples,
                eos_ids=eos,
                response_length=gate_rollout.response_length(self._trainer),
                padded_ones=rollouts.padded_ones,
            ),
            judge.judge_chat_template(
                rollouts.samples,
                rendered=prompts.get("ids"),
                generation_prompt=prompts.get("generation", ()),
                missing=self._silent or answers.get("prompts-missing", ""),
                prompt_length=int(self._config.rollout.prompt_length),
            ),
        ]
