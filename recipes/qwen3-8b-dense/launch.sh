#!/usr/bin/env bash
# Made by `verl-musa recipe launch qwen3-8b-dense`; a test holds it to the recipe. Change the recipe, not this file.
#
# The job of this recipe by hand, without checks, progress or report: on the head node, in the recipe's image, where Ray is up on
# 4 host(s) with 8 devices each. Further arguments are verl's overrides, for example trainer.total_training_steps=4.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")"
recipe_dir=$PWD
: "${SITE_MODELS:?set it to the value that site.yaml has for models}"
: "${SITE_SHARED:?set it to the value that site.yaml has for shared}"
: "${SITE_TRAINING_INTERFACE:?set it to the value that site.yaml has for training_interface}"
: "${RAY_JOBS_ADDRESS:=http://127.0.0.1:8265}"
run_id=${RUN_ID:-qwen3-8b-dense-$(date -u +%Y%m%d-%H%M%S)}
run_dir=${RUN_DIR:-${SITE_SHARED}/runs/qwen3-8b-dense/${run_id}}
export CUDA_DEVICE_MAX_CONNECTIONS=1
export GLOO_SOCKET_IFNAME="${SITE_TRAINING_INTERFACE}"
export HF_HUB_OFFLINE=1
export MCCL_CROSS_NIC=1
export MCCL_IB_GID_INDEX=3
export MCCL_IB_RETRY_CNT=20
export MCCL_IB_TIMEOUT=20
export MCCL_SOCKET_IFNAME="${SITE_TRAINING_INTERFACE}"
export MCCL_TIMEOUT=600000
export MUSA_EXECUTION_TIMEOUT=3000000
export PYTHONUNBUFFERED=1
export RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO=0
export RAY_EXPERIMENTAL_NOSET_MUSA_VISIBLE_DEVICES=1
export TOKENIZERS_PARALLELISM=false
export VERL_FILE_LOGGER_PATH="${run_dir}/logs/metrics-1.jsonl"
export VERL_MUSA_EXPECT="{\"device\": \"musa\", \"backend\": \"mccl\", \"simulated\": false}"
export VERL_MUSA_RUN_DIR="${run_dir}"
export VERL_MUSA_RUN_ID="${run_id}"
export VERL_PLATFORM=musa
# Patches are applied in every process; the plan depends on what is installed.
VERL_MUSA_PATCHES=$(python3 -c 'import sys; from verl_musa.patching import activation_env; print(activation_env(simulated=False)[sys.argv[1]])' VERL_MUSA_PATCHES)
export VERL_MUSA_PATCHES
mkdir -p -- "${run_dir}/logs"
# Ray carries the variables to the workers; exports of this shell do not get there.
runtime_env=$(python3 -c 'import json, os, sys; print(json.dumps({**json.loads(sys.argv[1]), "env_vars": {n: os.environ[n] for n in sys.argv[2:]}}))' \
  '{"worker_process_setup_hook": "verl_musa.device.guard.on_worker_start"}' CUDA_DEVICE_MAX_CONNECTIONS GLOO_SOCKET_IFNAME HF_HUB_OFFLINE MCCL_CROSS_NIC MCCL_IB_GID_INDEX MCCL_IB_RETRY_CNT MCCL_IB_TIMEOUT MCCL_SOCKET_IFNAME MCCL_TIMEOUT MUSA_EXECUTION_TIMEOUT PYTHONUNBUFFERED RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO RAY_EXPERIMENTAL_NOSET_MUSA_VISIBLE_DEVICES TOKENIZERS_PARALLELISM VERL_FILE_LOGGER_PATH VERL_MUSA_EXPECT VERL_MUSA_PATCHES VERL_MUSA_RUN_DIR VERL_MUSA_RUN_ID VERL_PLATFORM)
echo "run ${run_id} in ${run_dir}; follow it: ray job logs --address ${RAY_JOBS_ADDRESS} --follow ${run_id}"
exec ray job submit --address "${RAY_JOBS_ADDRESS}" --submission-id "${run_id}" --no-wait --runtime-env-json "${runtime_env}" -- \
  python3 -m verl.trainer.main_ppo --config-name ppo_megatron_trainer \
  "hydra.run.dir=${run_dir}/logs/hydra" \
  "data.train_files=['${SITE_SHARED}/data/dapo-math-17k/train.parquet']" \
  "data.val_files=['${SITE_SHARED}/data/aime-2024/val.parquet']" \
  "actor_rollout_ref.model.path='${SITE_MODELS}/Qwen3-8B'" \
  trainer.nnodes=4 \
  trainer.n_gpus_per_node=8 \
  "trainer.project_name='qwen3-8b-dense'" \
  "trainer.experiment_name='${run_id}'" \
  "trainer.default_local_dir='${run_dir}/checkpoints'" \
  actor_rollout_ref.actor.megatron.seed=17 \
  actor_rollout_ref.actor.data_loader_seed=17 \
  actor_rollout_ref.rollout.seed=17 \
  data.seed=17 \
  critic.megatron.seed=17 \
  reward.reward_model.rollout.seed=17 \
  actor_rollout_ref.actor.megatron.use_dist_checkpointing=true \
  "actor_rollout_ref.actor.megatron.dist_checkpointing_path='${SITE_SHARED}/converted/Qwen3-8B-torch_dist'" \
  actor_rollout_ref.ref.megatron.use_dist_checkpointing=true \
  "actor_rollout_ref.ref.megatron.dist_checkpointing_path='${SITE_SHARED}/converted/Qwen3-8B-torch_dist'" \
  "reward.custom_reward_function.path='${recipe_dir}/reward.py'" \
  "reward.custom_reward_function.name='compute_score'" \
  "algorithm.adv_estimator='grpo'" \
  algorithm.use_kl_in_reward=false \
  data.train_batch_size=64 \
  data.max_prompt_length=1024 \
  data.max_response_length=16384 \
  data.filter_overlong_prompts=true \
  "data.truncation='error'" \
  actor_rollout_ref.nccl_timeout=3600 \
  actor_rollout_ref.model.use_remove_padding=true \
  "actor_rollout_ref.actor.strategy='megatron'" \
  actor_rollout_ref.actor.optim.lr=1e-06 \
  actor_rollout_ref.actor.ppo_mini_batch_size=64 \
  actor_rollout_ref.actor.use_dynamic_bsz=true \
  actor_rollout_ref.actor.ppo_max_token_len_per_gpu=34816 \
  actor_rollout_ref.actor.use_kl_loss=true \
  actor_rollout_ref.actor.kl_loss_coef=0.001 \
  actor_rollout_ref.actor.megatron.tensor_model_parallel_size=4 \
  actor_rollout_ref.actor.megatron.pipeline_model_parallel_size=1 \
  actor_rollout_ref.actor.megatron.sequence_parallel=true \
  actor_rollout_ref.actor.megatron.param_offload=true \
  actor_rollout_ref.actor.megatron.optimizer_offload=true \
  actor_rollout_ref.actor.megatron.vanilla_mbridge=true \
  "actor_rollout_ref.actor.megatron.override_transformer_config.recompute_granularity='full'" \
  "actor_rollout_ref.actor.megatron.override_transformer_config.recompute_method='block'" \
  actor_rollout_ref.actor.megatron.override_transformer_config.recompute_num_layers=36 \
  +actor_rollout_ref.actor.megatron.override_transformer_config.gradient_accumulation_fusion=false \
  +actor_rollout_ref.actor.megatron.override_transformer_config.persist_layer_norm=false \
  +actor_rollout_ref.actor.megatron.override_transformer_config.bias_activation_fusion=false \
  +actor_rollout_ref.actor.megatron.override_transformer_config.bias_dropout_fusion=false \
  +actor_rollout_ref.actor.megatron.override_transformer_config.masked_softmax_fusion=false \
  "actor_rollout_ref.rollout.name='sglang'" \
  actor_rollout_ref.rollout.n=8 \
  actor_rollout_ref.rollout.tensor_model_parallel_size=2 \
  actor_rollout_ref.rollout.gpu_memory_utilization=0.6 \
  actor_rollout_ref.rollout.val_kwargs.do_sample=true \
  actor_rollout_ref.rollout.val_kwargs.temperature=0.6 \
  actor_rollout_ref.rollout.val_kwargs.top_p=0.95 \
  actor_rollout_ref.rollout.val_kwargs.top_k=20 \
  actor_rollout_ref.rollout.val_kwargs.n=8 \
  +actor_rollout_ref.rollout.engine_kwargs.sglang.disable_custom_all_reduce=true \
  "trainer.logger=['console','file']" \
  trainer.total_training_steps=200 \
  trainer.total_epochs=1 \
  trainer.val_before_train=true \
  trainer.test_freq=20 \
  trainer.save_freq=20 \
  trainer.max_actor_ckpt_to_keep=2 \
  "+actor_rollout_ref.rollout.engine_kwargs.sglang.attention_backend='fa3'" \
  actor_rollout_ref.rollout.enforce_eager=true \
  +actor_rollout_ref.rollout.engine_kwargs.sglang.disable_cuda_graph=true \
  +actor_rollout_ref.rollout.engine_kwargs.sglang.disable_radix_cache=true \
  +actor_rollout_ref.rollout.engine_kwargs.sglang.disable_overlap_schedule=true \
  actor_rollout_ref.rollout.free_cache_engine=true \
  +actor_rollout_ref.rollout.engine_kwargs.sglang.enable_memory_saver=true \
  +actor_rollout_ref.rollout.engine_kwargs.sglang.page_size=64 \
  "$@"
