"""Mistakes of public scripts and of our own making: each is named, with its place and what to do."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from verl_musa.checks import Status
from verl_musa.errors import RecipeError
from verl_musa.rules import check_recipe

from .conftest import DENSE, MOE, Plant, compose_quickly

ACTOR, ROLLOUT, REF = (f"actor_rollout_ref.{role}" for role in ("actor", "rollout", "ref"))
MEGATRON = f"{ACTOR}.megatron"
OVERRIDE = f"{MEGATRON}.override_transformer_config"


class Mistake(NamedTuple):
    """One mistake: in which recipe and file, what is replaced by what, which check finds it, and what it says."""

    recipe: str
    file: str
    old: str
    new: str
    check: str
    says: str
    status: Status = Status.FAIL


CONFIG, RECIPE, ENV = "config.yaml", "recipe.yaml", "runtime_env.yaml"

MISTAKES = {
    # --- kinds that public scripts and documents for these machines carry
    "more-recomputed-layers-than-layers": Mistake(
        DENSE, CONFIG, "recompute_num_layers: 36", "recompute_num_layers: 48", "layout.recompute", "48, a pipeline stage of this model has 36"),
    "expert-parallel-on-a-dense-model": Mistake(
        DENSE, CONFIG, "", f"{MEGATRON}.expert_model_parallel_size: 8", "layout.experts", "the model is dense"),
    "rollout-does-not-fill-the-devices": Mistake(
        DENSE, CONFIG, f"{ROLLOUT}.tensor_model_parallel_size: 2", f"{ROLLOUT}.tensor_model_parallel_size: 3", "rollout.parallel", "do not divide the job's 32"),
    "pipeline-that-does-not-divide-the-layers": Mistake(
        DENSE, CONFIG, f"{MEGATRON}.pipeline_model_parallel_size: 1", f"{MEGATRON}.pipeline_model_parallel_size: 8", "layout.layers", "36 layers do not divide over PP 8"),
    "reference-with-groups-of-its-own": Mistake(
        MOE, CONFIG, "", f"{REF}.megatron.tensor_model_parallel_size: 1", "layout.groups", "verl makes actor_rollout_ref.ref first"),
    "card-contradicts-the-configuration": Mistake(
        DENSE, "README.md", "| `data.train_batch_size` | 64 |", "| `data.train_batch_size` | 128 |", "card.values", "the card says data.train_batch_size is 128, the recipe says 64"),
    "total-time-is-not-steps-times-step": Mistake(
        DENSE, RECIPE, "total_hours: [33, 100]", "total_hours: [12, 20]", "card.time", "12 h are promised; 200 steps of 10 min take 33 h"),
    "variable-that-renders-empty": Mistake(
        MOE, ENV, 'MCCL_CROSS_NIC: "1"', 'MCCL_CROSS_NIC: ""', "env.empty", "MCCL_CROSS_NIC is empty"),
    "variable-that-refers-to-itself": Mistake(
        MOE, ENV, 'MCCL_CROSS_NIC: "1"', 'PYTHONPATH: "/opt/x:$PYTHONPATH"', "env.empty", "no shell replaces it"),
    "switch-overridden-elsewhere": Mistake(
        DENSE, CONFIG, "", f"{ROLLOUT}.enforce_eager: false", "recipe.resolve", "decided by the sglang block"),
    "key-written-twice": Mistake(
        DENSE, CONFIG, "", "data.train_batch_size: 32", "recipe.resolve", "written twice"),
    "grad-offload-of-an-older-verl": Mistake(
        MOE, CONFIG, "", f"+{MEGATRON}.grad_offload: true", "recipe.resolve", "no longer has"),
    "bridge-switched-off-as-in-an-older-verl": Mistake(
        MOE, CONFIG, "", f"{MEGATRON}.use_mbridge: false", "conflict.bridge", "asserts a bridge"),
    "truncated-sampling-in-training": Mistake(
        DENSE, CONFIG, "", f"{ROLLOUT}.top_k: 100", "conflict.sampling", "cut distribution", Status.WARN),
    "numbers-corrupted-by-a-channel-count": Mistake(
        DENSE, ENV, 'MCCL_CROSS_NIC: "1"', 'MCCL_MIN_P2P_NCHANNELS: "4"', "env.harmful", "corrupt numbers", Status.WARN),
    "another-vendors-variable": Mistake(
        DENSE, ENV, 'MCCL_CROSS_NIC: "1"', 'NCCL_CROSS_NIC: "1"', "env.harmful", "another vendor's", Status.WARN),
    # --- layout
    "devices-not-a-product": Mistake(
        DENSE, CONFIG, f"{MEGATRON}.tensor_model_parallel_size: 4", f"{MEGATRON}.tensor_model_parallel_size: 5", "layout.world", "does not divide 32 devices"),
    "experts-not-divisible": Mistake(
        MOE, CONFIG, "expert_model_parallel_size: 8", "expert_model_parallel_size: 12", "layout.experts", "128 experts do not divide over EP 12"),
    "experts-over-too-many-devices": Mistake(
        MOE, CONFIG, "expert_tensor_parallel_size: 1", "expert_tensor_parallel_size: 8", "layout.world", "ETP 8 x EP 8"),
    "experts-over-several-hosts": Mistake(
        MOE, CONFIG, "expert_model_parallel_size: 8", "expert_model_parallel_size: 16", "layout.hosts", "over the network", Status.WARN),
    "experts-without-sequence-parallelism": Mistake(
        MOE, CONFIG, f"{MEGATRON}.sequence_parallel: true", f"{MEGATRON}.sequence_parallel: false", "layout.sequence", "refuses in training"),
    "clean-heads-of-a-whole-replica": Mistake(
        DENSE, CONFIG, f"{ROLLOUT}.tensor_model_parallel_size: 2", f"{ROLLOUT}.tensor_model_parallel_size: 32", "model.heads", "", Status.OK),
    "virtual-stages-without-a-pipeline": Mistake(
        DENSE, CONFIG, "", f"{MEGATRON}.virtual_pipeline_model_parallel_size: 2", "layout.layers", "one pipeline stage"),
    "recompute-method-without-granularity": Mistake(
        DENSE, CONFIG, f"{OVERRIDE}.recompute_granularity: full\n", "", "layout.recompute", "nothing is recomputed"),
    "recompute-method-that-does-not-exist": Mistake(
        DENSE, CONFIG, "recompute_method: block", "recompute_method: every", "layout.recompute", "'full' with recompute_method 'every'"),
    "rollout-expert-parallel-size": Mistake(
        MOE, CONFIG, "", f"{ROLLOUT}.expert_parallel_size: 8", "layout.experts", "verl takes 1 or TP x DP"),
    # --- batches and tokens
    "token-budget-below-a-sample": Mistake(
        MOE, CONFIG, "ppo_max_token_len_per_gpu: 33792", "ppo_max_token_len_per_gpu: 32768", "tokens.budget", "longest sample has 33792"),
    "critic-budget-in-the-key-that-is-not-read": Mistake(
        f"{MOE}@ppo", "variants/ppo.yaml", "+critic.ppo_infer_max_token_len_per_gpu: 33792", "critic.ppo_max_token_len_per_gpu: 33792", "tokens.critic", "verl's built-in 32768"),
    "mini-batch-above-the-batch": Mistake(
        DENSE, CONFIG, "data.train_batch_size: 64", "data.train_batch_size: 32", "batch.size", "below ppo_mini_batch_size"),
    "clean-three-samples-a-prompt": Mistake(
        DENSE, CONFIG, f"{ROLLOUT}.n: 8", f"{ROLLOUT}.n: 3\n{ACTOR}.loss_agg_mode: token-mean", "batch.size", "", Status.OK),
    "one-sample-a-prompt-with-grpo": Mistake(
        DENSE, CONFIG, f"{ROLLOUT}.n: 8", f"{ROLLOUT}.n: 1", "tokens.samples", "every advantage is 0"),
    "micro-batch-size-that-is-ignored": Mistake(
        DENSE, CONFIG, "", f"{ACTOR}.ppo_micro_batch_size_per_gpu: 1", "tokens.dynamic", "has no effect", Status.WARN),
    "dynamic-batches-for-one-half": Mistake(
        DENSE, CONFIG, "", f"{ROLLOUT}.log_prob_use_dynamic_bsz: false", "tokens.dynamic", "verl asserts that they are equal"),
    "context-longer-than-the-model": Mistake(
        MOE, CONFIG, "", f"{ROLLOUT}.max_model_len: 65536", "length.context", "above the model's 40960 positions"),
    # --- memory
    "server-without-room-for-its-weights": Mistake(
        MOE, CONFIG, "gpu_memory_utilization: 0.65", "gpu_memory_utilization: 0.15", "rollout.cache", "cache 0.0 GiB"),
    "share-of-a-device-above-one": Mistake(
        MOE, CONFIG, "gpu_memory_utilization: 0.65", "gpu_memory_utilization: 65", "rollout.cache", "is 65"),
    "update-that-does-not-fit": Mistake(
        MOE, CONFIG, "ppo_max_token_len_per_gpu: 33792", "ppo_max_token_len_per_gpu: 135168", "placement.device_memory", "actor, update"),
    "promised-memory-below-the-estimate": Mistake(
        MOE, RECIPE, "device_gib: [50, 70]", "device_gib: [20, 40]", "card.memory", "the estimate is 59 GiB"),
    # --- options that cancel, override or need each other
    "clean-reference-alone-converted": Mistake(
        DENSE, RECIPE, "conversion: [{roles: [actor, ref], output:", "conversion: [{roles: [ref], output:", "conflict.checkpoint", "", Status.OK),
    "local-attention-with-packed-sequences": Mistake(
        DENSE, CONFIG, "", f"{OVERRIDE}.attention_backend: local", "conflict.padding", "takes no packed sequences"),
    "padding-asked-for-in-the-wrong-place": Mistake(
        DENSE, CONFIG, "", f"{MEGATRON}.use_remove_padding: false", "conflict.padding", "is True and wins"),
    "clip-range-that-is-not-used": Mistake(
        DENSE, CONFIG, "", f"{ACTOR}.clip_ratio: 0.3", "conflict.clip", "clip_ratio_low of 0.2 wins"),
    "kl-weight-without-a-kl": Mistake(
        DENSE, CONFIG, f"{ACTOR}.use_kl_loss: true\n", "", "conflict.kl", "it has no effect", Status.WARN),
    "kl-in-two-places": Mistake(
        DENSE, CONFIG, "algorithm.use_kl_in_reward: false", "algorithm.use_kl_in_reward: true", "conflict.kl", "both in the loss and in the reward", Status.WARN),
    "warm-up-said-twice": Mistake(
        DENSE, CONFIG, "", f"{ACTOR}.optim.lr_warmup_steps: 5\n{ACTOR}.optim.lr_warmup_steps_ratio: 0.1", "conflict.warmup", "5 wins"),
    "greedy-validation-many-times": Mistake(
        DENSE, CONFIG, f"{ROLLOUT}.val_kwargs.do_sample: true\n", "", "conflict.sampling", "all answers are the same", Status.WARN),
    "correction-without-probabilities": Mistake(
        MOE, CONFIG, f"{ROLLOUT}.calculate_log_probs: true", f"{ROLLOUT}.calculate_log_probs: false", "conflict.correction", "nothing to correct with"),
    "host-optimizer-beside-offload": Mistake(
        MOE, CONFIG, f"{MEGATRON}.optimizer_offload: true",
        f"+{ACTOR}.optim.override_optimizer_config.optimizer_cpu_offload: true\n{MEGATRON}.optimizer_offload: true", "conflict.offload", "to and fro each step", Status.WARN),
    "host-share-without-its-switch": Mistake(
        MOE, CONFIG, "", f"+{ACTOR}.optim.override_optimizer_config.optimizer_offload_fraction: 1.0", "conflict.offload", "nothing lives on the host"),
    "graphs-beside-the-memory-saver": Mistake(
        MOE, RECIPE, "graphs: false", "graphs: true", "server.memory_saver", "error 900"),
    "critic-switched-off-under-gae": Mistake(
        f"{DENSE}@ppo", "variants/ppo.yaml", "critic.strategy: megatron", "critic.enable: false", "conflict.critic", "needs a critic"),
    "checkpoint-without-an-optimizer": Mistake(
        DENSE, CONFIG, "", f"{ACTOR}.checkpoint.save_contents: [model]", "conflict.saving", "empty optimizer", Status.WARN),
    # --- names
    "key-misspelt": Mistake(
        DENSE, CONFIG, "data.train_batch_size: 64", "data.train_batchsize: 64", "recipe.resolve", "did you mean data.train_batch_size"),
    "megatron-option-misspelt": Mistake(
        MOE, CONFIG, "moe_router_dtype: fp32", "moe_router_dtyp: fp32", "names.transformer", "does not exist"),
    "sglang-option-misspelt": Mistake(
        DENSE, CONFIG, "sglang.disable_custom_all_reduce", "sglang.disable_custom_allreduce", "names.sglang", "does not exist"),
    "optimizer-option-misspelt": Mistake(
        DENSE, CONFIG, "", f"+{ACTOR}.optim.override_optimizer_config.optimizer_cpu_ofload: true", "names.optimizer", "does not exist"),
    # --- environment, network, conversion
    "ray-that-narrows-the-devices": Mistake(
        DENSE, ENV, '  RAY_EXPERIMENTAL_NOSET_MUSA_VISIBLE_DEVICES: "1"\n', "", "env.needed", "is not set"),
    "hosts-without-an-interface": Mistake(
        DENSE, RECIPE, 'network: {profile: roce, interface: "${site.training_interface}", gid_index: 3, timeout: 20, retries: 20}', "network: {profile: single}", "env.network", "no training interface"),
    "conversion-in-another-type": Mistake(
        DENSE, RECIPE, "dtype: bfloat16}]", "dtype: float16}]", "conversion.used", "writes float16", Status.WARN),
    "conversion-for-a-role-that-is-not-made": Mistake(
        f"{DENSE}@ppo", "variants/ppo.yaml", "- {roles: [actor], ", "- {roles: [actor, ref], ", "conversion.used", "the role ref", Status.WARN),
    "model-without-a-revision": Mistake(
        DENSE, RECIPE, "  revision: b968826d9c46dd6066d109eabc6255188de91218\n", "", "conversion.facts", "without a revision", Status.WARN),
    "facts-that-do-not-fit-together": Mistake(
        DENSE, RECIPE, "num_key_value_heads: 8", "num_key_value_heads: 7", "conversion.facts", "shared evenly"),
}  # fmt: skip

# Rows that check_recipe must not complain about are there to show that the neighbours of a mistake pass.
CLEAN = {name for name, mistake in MISTAKES.items() if mistake.status is Status.OK}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_planted_mistake_is_named_with_its_place_and_fix(
    plant: Plant, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mistake = MISTAKES[name]
    if mistake.check != "recipe.resolve":
        compose_quickly(monkeypatch)
    planted = plant(mistake.recipe, mistake.file, mistake.old, mistake.new)
    if mistake.check == "recipe.resolve":
        with pytest.raises(RecipeError) as error:
            planted.resolve()
        assert mistake.says in str(error.value)
        assert error.value.where == planted.where
        assert error.value.fix
        return
    results = {result.check: result for result in check_recipe(planted.resolve(), verl=False).results}
    found = results[mistake.check]
    assert found.status is mistake.status, found
    if name in CLEAN:
        return
    assert mistake.says in found.evidence
    assert found.fix
    if mistake.new.strip():
        assert found.where == planted.where
    else:
        assert found.where.startswith(str(planted.folder))


def test_there_are_at_least_fifty() -> None:
    assert len(set(MISTAKES) - CLEAN) >= 50
