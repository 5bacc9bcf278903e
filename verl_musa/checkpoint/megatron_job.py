"""A process of its own that loads a checkpoint with the real Megatron-Core on the CPU and computes logits.

Started as ``python -m verl_musa.checkpoint.megatron_job REQUESTS RANKS`` with the folder that holds ``megatron`` on
``PYTHONPATH``; it forks one process a rank.
Megatron-Core asks ``torch.cuda`` for a device, a stream and a random state even where it computes on the CPU;
:func:`redirect_to_cpu` answers those questions. Nothing of it is imported by other modules of this package.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from verl_musa.checkpoint.spec import ModelSpec, read_spec

POLL_S = 0.1


def redirect_to_cpu() -> None:
    """Let Megatron-Core's layers, without Transformer Engine, run forward passes on the CPU.

    Measured on 0.16.1: each of these raises without its line. Seeding is not needed, since every
    parameter is overwritten and nothing drops out.
    """
    import torch

    event = SimpleNamespace(synchronize=lambda: None)
    stream = SimpleNamespace(wait_stream=lambda _other: None, record_event=lambda: event)
    cuda: Any = torch.cuda
    cuda.current_device = lambda: torch.device("cpu")
    cuda.Stream = lambda *_args, **_kwargs: stream
    cuda.current_stream = lambda *_args: stream
    cuda.synchronize = lambda *_args: None
    tensor: Any = torch.Tensor
    tensor.cuda = lambda self, *_args, **_kwargs: self

    from megatron.core.tensor_parallel import random as parallel_random

    parallel_random.CudaRNGStatesTracker.fork = lambda *_args, **_kwargs: contextlib.nullcontext()

    from megatron.core.transformer.moe import moe_utils, token_dispatcher

    if not hasattr(moe_utils, "te_general_gemm"):  # only bound where Transformer Engine is installed
        moe_utils.te_general_gemm = None
    # The original converts only what lies on a device, and all_to_all wants plain numbers.
    token_dispatcher.maybe_move_tensor_to_cpu = lambda value, as_numpy=False, **_kwargs: (
        value.numpy() if as_numpy and torch.is_tensor(value) else value
    )


def build_model(spec: ModelSpec, layout: dict[str, int], layer_spec: str, dtype: Any = None) -> Any:
    """Return this rank's part of the model, local layers, every parameter NaN until it is loaded.

    Args:
        spec: the model.
        layout: ``tp``, ``pp`` and ``ep`` sizes, as :func:`parallel` was given.
        layer_spec: names in the checkpoint, ``te`` or ``local``; they differ where there are experts.
        dtype: torch's type of the parameters; None for float32.
    """
    import torch
    from megatron.core import parallel_state
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer import TransformerConfig

    experts: dict[str, Any] = {}
    if spec.experts:
        experts = {
            "num_moe_experts": spec.experts,
            "moe_ffn_hidden_size": spec.expert_ffn,
            "moe_router_topk": spec.topk,
            "moe_router_load_balancing_type": "none",
            "moe_router_pre_softmax": False,
            "moe_router_dtype": "fp32",
            "moe_token_dispatcher_type": "alltoall",
            "moe_grouped_gemm": False,
        }
    config = TransformerConfig(
        num_layers=spec.layers,
        hidden_size=spec.hidden,
        num_attention_heads=spec.heads,
        num_query_groups=spec.groups,
        kv_channels=spec.head_dim,
        ffn_hidden_size=spec.ffn,
        layernorm_epsilon=spec.eps,
        normalization="RMSNorm",
        qk_layernorm=True,
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        add_bias_linear=False,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        params_dtype=dtype or torch.float32,
        pipeline_dtype=dtype or torch.float32,
        tensor_model_parallel_size=layout["tp"],
        pipeline_model_parallel_size=layout["pp"],
        expert_model_parallel_size=layout["ep"],
        expert_tensor_parallel_size=1,
        use_cpu_initialization=True,
        perform_initialization=False,
        persist_layer_norm=False,
        masked_softmax_fusion=False,
        gradient_accumulation_fusion=False,
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        **experts,
    )
    layers = get_gpt_decoder_block_spec(config, use_transformer_engine=False, normalization="RMSNorm")
    if spec.experts and layer_spec == "te":
        for layer in layers.layer_specs:
            layer.submodules.sharded_state_dict_keys_map.pop("pre_mlp_layernorm.", None)
    model = GPTModel(
        config=config,
        transformer_layer_spec=layers,
        vocab_size=padded_vocab(spec.vocab, layout["tp"]),
        max_sequence_length=spec.positions,
        position_embedding_type="rope",
        rotary_base=int(spec.rope_theta),
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
        share_embeddings_and_output_weights=spec.tied,
        parallel_output=False,
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(float("nan"))
    return model.eval()


def padded_vocab(rows: int, tensor_parallel: int) -> int:
    """Rows of the embedding so that each tensor-parallel rank has the same number."""
    return -(-rows // tensor_parallel) * tensor_parallel


def load(model: Any, folder: str) -> None:
    """Load a checkpoint folder as verl does, and check that nothing was left out.

    Raises:
        RuntimeError: a parameter was not loaded.
    """
    import torch
    from megatron.core import dist_checkpointing

    state = dist_checkpointing.load({"model": model.sharded_state_dict()}, folder)["model"]
    model.load_state_dict(state, strict=False)
    missing = [name for name, value in model.named_parameters() if not torch.isfinite(value).all()]
    if missing:
        raise RuntimeError(f"not loaded: {', '.join(missing)}")


def logits(model: Any, tokens: Any) -> Any:
    """Return (batch, length, vocabulary) fp32 logits on the last pipeline stage, None on the others.

    Args:
        model: from :func:`build_model`.
        tokens: (batch, length) int64.
    """
    import torch
    from megatron.core import parallel_state

    batch, length = tokens.shape
    first, last = parallel_state.is_pipeline_first_stage(), parallel_state.is_pipeline_last_stage()
    with torch.no_grad():
        if not first:
            received = torch.empty(length, batch, model.config.hidden_size)
            torch.distributed.recv(received, src=parallel_state.get_pipeline_model_parallel_prev_rank())
            model.set_input_tensor(received)
        positions = torch.arange(length).expand(batch, -1)
        # Megatron would make this mask itself, but on a CUDA device: true where a position must not look.
        mask = torch.ones(1, 1, length, length).triu(1).bool()
        output = model(tokens, positions, mask)
        if not last:
            torch.distributed.send(
                output.contiguous(), dst=parallel_state.get_pipeline_model_parallel_next_rank()
            )
            return None
        return output.float()


@contextlib.contextmanager
def parallel(layout: dict[str, int]) -> Iterator[None]:
    """Make Megatron-Core's parallel groups, and undo them at the end; what is left of the world is data parallel."""
    from megatron.core import parallel_state

    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=layout["tp"],
        pipeline_model_parallel_size=layout["pp"],
        expert_model_parallel_size=layout["ep"],
        expert_tensor_parallel_size=1,
        create_gloo_process_groups=False,
    )
    try:
        yield
    finally:
        parallel_state.destroy_model_parallel()


def answer(requests: list[dict[str, Any]], rank: int, ranks: int, meeting: str) -> None:
    """Be one rank: answer ``{"hf", "mcore", "layer_spec", "layout", "tokens", "out"}``, one request after the other."""
    import torch
    from safetensors.torch import load_file, save_file

    torch.distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=ranks)
    for request in requests:
        spec = read_spec(Path(request["hf"]))
        with parallel(request["layout"]):
            model = build_model(spec, request["layout"], request["layer_spec"])
            load(model, request["mcore"])
            found = logits(model, load_file(request["tokens"])["tokens"])
            # The last rank always lies in the last pipeline stage, and has the whole vocabulary.
            if rank == ranks - 1:
                save_file({"logits": found[..., : spec.vocab].contiguous()}, request["out"])
    torch.distributed.destroy_process_group()


def main(request_file: str, ranks: int) -> int:
    """Answer a list of requests with ``ranks`` processes, forked once the imports, half a minute of work, are done."""
    import multiprocessing

    import torch

    requests = json.loads(Path(request_file).read_text(encoding="utf-8"))
    torch.set_num_threads(1)
    redirect_to_cpu()
    from megatron.core.models.gpt import gpt_model  # noqa: F401  (before the fork)

    fork = multiprocessing.get_context("fork")
    meeting = f"{Path(request_file).resolve()}.meeting"
    processes = [fork.Process(target=answer, args=(requests, rank, ranks, meeting)) for rank in range(ranks)]
    for process in processes:
        process.start()
    try:
        while any(process.is_alive() for process in processes):
            if any(process.exitcode for process in processes):
                return 1
            processes[0].join(POLL_S)
            time.sleep(POLL_S)
        return int(any(process.exitcode for process in processes))
    finally:
        for process in processes:
            process.kill()
            process.join()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
