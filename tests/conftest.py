"""Shared pytest set-up."""

from __future__ import annotations

import importlib.util
import os
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import pytest

RECIPE = """\
schema: 1
name: {name}
version: 0.1.0
summary: A recipe for tests
image: sim
device: {{type: musa, simulated: true}}
model: {{path: "${{recipe.dir}}/model", architecture: Qwen3ForCausalLM}}
data: {{train: ["${{recipe.dir}}/train.parquet"], val: ["${{recipe.dir}}/val.parquet"]}}
reward: {{file: reward.py, function: compute_score}}
cluster: {{nodes: 1, devices_per_node: 2, cpus_per_node: 16, host_memory_gib: 8}}
seed: 17
"""

CONFIG = """\
algorithm.adv_estimator: grpo
data.train_batch_size: 8
data.max_prompt_length: 16
data.max_response_length: 16
actor_rollout_ref.actor.strategy: fsdp2
actor_rollout_ref.actor.ppo_mini_batch_size: 8
actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu: 4
actor_rollout_ref.actor.optim.lr: 3e-3
+actor_rollout_ref.model.override_config.attn_implementation: sdpa
actor_rollout_ref.rollout.name: sglang
actor_rollout_ref.rollout.n: 4
actor_rollout_ref.rollout.tensor_model_parallel_size: 1
actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu: 4
actor_rollout_ref.rollout.enforce_eager: true
+actor_rollout_ref.rollout.engine_kwargs.sglang: {attention_backend: triton}
"""

REWARD = """\
def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    return float(solution_str == ground_truth)
"""

MakeRecipe = Callable[..., Path]


@dataclass(frozen=True)
class Aside:
    """Packages that only some subprocesses of the tests may see (ci/stack.py puts them aside).

    torchada redirects torch for a whole process, and SGLang takes its mere presence for a Moore Threads host.
    """

    folder: Path

    def of(self, extra: str) -> Aside:
        """The folder of another extra."""
        return Aside(self.folder.parent / extra)

    def version(self, distribution: str) -> str | None:
        """Version of a distribution in this environment or aside; None where there is none."""
        places = [*sys.path, str(self.folder)]
        found = next(iter(metadata.distributions(name=distribution, path=places)), None)
        return None if found is None else found.version

    def python_path(self, *first: Path) -> str:
        """``PYTHONPATH`` of a subprocess that sees them."""
        return os.pathsep.join(
            filter(None, [*map(str, first), str(self.folder), os.environ.get("PYTHONPATH")])
        )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a Moore Threads GPU where there is none."""
    reason = _why_no_hardware()
    for item in items:
        if reason is not None and item.get_closest_marker("musa") is not None:
            item.add_marker(pytest.mark.skip(reason=reason))


def _why_no_hardware() -> str | None:
    if next(iter(metadata.distributions(name="musa-sim")), None) is not None:
        return "needs a real Moore Threads GPU; torch_musa is the simulator here"
    if importlib.util.find_spec("torch_musa") is None:
        return "needs a real Moore Threads GPU; torch_musa is not installed here"
    return None


@pytest.fixture(scope="session")
def aside() -> Aside:
    return Aside(Path(sys.prefix) / "aside" / "megatron")


@pytest.fixture
def make_recipe(tmp_path: Path) -> MakeRecipe:
    """Writes a small valid recipe and returns its folder.

    Keyword arguments: ``name``; ``replace`` (pairs applied to recipe.yaml); ``extra`` (lines added to recipe.yaml);
    ``config``, ``reward`` and ``runtime_env`` (contents of those files).
    """

    def make(
        *,
        name: str = "tiny",
        replace: tuple[tuple[str, str], ...] = (),
        extra: str = "",
        config: str = CONFIG,
        reward: str = REWARD,
        runtime_env: str | None = None,
    ) -> Path:
        folder = tmp_path / "recipes" / name
        folder.mkdir(parents=True, exist_ok=True)
        text = RECIPE.format(name=name) + textwrap.dedent(extra)
        for old, new in replace:
            assert old in text, f"nothing to replace: {old!r}"
            text = text.replace(old, new)
        (folder / "recipe.yaml").write_text(text, encoding="utf-8")
        (folder / "config.yaml").write_text(config, encoding="utf-8")
        (folder / "reward.py").write_text(reward, encoding="utf-8")
        if runtime_env is not None:
            (folder / "runtime_env.yaml").write_text(runtime_env, encoding="utf-8")
        return folder

    return make
