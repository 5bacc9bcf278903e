"""Checks of the models that give numbers: the critic and the reward model, where a recipe uses them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from verl_musa.checks import Check, Finding, Status, fail, ok, unknown
from verl_musa.data.model import (
    architecture_finding,
    folder_finding,
    read_object,
    tensor_names,
    tokenizer_finding,
    weights_finding,
)
from verl_musa.data.subject import Subject

PATHS = {"critic": "critic.model.path", "reward_model": "reward.reward_model.model_path"}
"""Field of recipe.yaml -> verl's key for the same folder."""

# Classes whose ``score`` is a linear layer with bias in SGLang 0.5.19 and one without in transformers.
_BIASED_IN_SGLANG = ("Qwen2ForSequenceClassification", "Qwen3ForSequenceClassification")


def used(subject: Subject, role: str) -> bool:
    """Whether the job has that role, by verl's own rules (``need_critic``, ``need_reward_model``)."""
    if role == "reward_model":
        return bool(subject.select("reward.reward_model.enable"))
    asked = subject.select("critic.enable")
    return bool(asked) if asked is not None else subject.select("algorithm.adv_estimator") == "gae"


def _absent(subject: Subject, role: str) -> Finding | None:
    return None if used(subject, role) else ok(f"the job has no {role.replace('_', ' ')}")


def _path(subject: Subject, role: str) -> Path:
    return Path(str(subject.select(PATHS[role], ""))).expanduser()


def _not_there(subject: Subject, role: str) -> Finding | None:
    """UNKNOWN where the folder or its config.json cannot be read; ``<role>.folder`` says why."""
    folder = _path(subject, role)
    if read_object(folder / "config.json"):
        return None
    return subject.not_made_yet(folder) or unknown(f"no readable config.json (see {role}.folder)")


def check_folder(role: str, subject: Subject) -> Finding:
    """The folder exists and holds a readable ``config.json``."""
    return _absent(subject, role) or folder_finding(
        subject, _path(subject, role), subject.where(PATHS[role]), f"{role}.path"
    )


def check_architecture(role: str, subject: Subject) -> Finding:
    """The folder holds the architecture that the recipe is written for."""
    missing = _absent(subject, role) or _not_there(subject, role)
    if missing:
        return missing
    model = getattr(subject.resolved.recipe, role)
    if model is None:
        return unknown(
            f"recipe.yaml names no {role}, so what its folder must hold is not known",
            f"add '{role}: {{path: …, architecture: …}}' to recipe.yaml",
        )
    return architecture_finding(_path(subject, role), model.architecture, role)


def check_weights(role: str, subject: Subject) -> Finding:
    """Every weight file is there and whole, by its own header."""
    return _absent(subject, role) or _not_there(subject, role) or weights_finding(_path(subject, role))


def check_critic_vocabulary(subject: Subject) -> Finding:
    """The critic has an embedding for every token of the policy: it reads the same sequences."""
    missing = _absent(subject, "critic") or _not_there(subject, "critic")
    if missing:
        return missing
    policy = subject.model_config()
    if policy is None:
        return subject.not_made_yet(subject.model_path) or unknown("no policy to compare (see model.folder)")
    file = _path(subject, "critic") / "config.json"
    found, needed = read_object(file).get("vocab_size"), policy.get("vocab_size")
    if not isinstance(found, int) or not isinstance(needed, int):
        return unknown("one of the two config.json names no vocab_size")
    if found < needed:
        return fail(
            f"the critic has {found} embeddings, the policy's tokens need {needed}",
            "start the critic from a model with the policy's tokenizer",
            str(file),
        )
    return ok(f"{found} embeddings for the policy's {needed} tokens")


def check_reward_tokenizer(subject: Subject) -> Finding:
    """The reward model has a tokenizer with a chat template: verl puts question and answer into its form."""
    missing = _absent(subject, "reward_model") or _not_there(subject, "reward_model")
    return missing or tokenizer_finding(_path(subject, "reward_model"), None)


def check_reward_head(subject: Subject) -> Finding:
    """The weights hold every part of the head that the server builds.

    SGLang 0.5.19 gives the score of two classifiers a bias (models/qwen{2,3}_classification.py), fills it at random and loads
    only what the files hold; transformers' classes have none. Without one in the files all scores are shifted, by another
    number at each start of a server.
    """
    role = "reward_model"
    missing = _absent(subject, role) or _not_there(subject, role)
    if missing:
        return missing
    folder = _path(subject, role)
    (architecture, *_) = read_object(folder / "config.json").get("architectures") or [None]
    server = subject.select("reward.reward_model.rollout.name")
    if server != "sglang" or architecture not in _BIASED_IN_SGLANG:
        return ok(f"nothing is known against {architecture} on {server}")
    if weights_finding(folder).status is not Status.OK:
        return unknown("the weights cannot be read (see reward_model.weights)")
    if "score.bias" not in tensor_names(folder):
        return fail(
            f"no score.bias in the weights; SGLang's {architecture} has one and would fill it at random",
            "add a tensor score.bias of zeros, one for each label",
            str(folder),
        )
    return ok("score.bias is in the weights")


def check_reward_placement(subject: Subject) -> Finding:
    """A reward function of the recipe's own gets what it needs from verl.

    verl 0.9.1 hands a colocated reward model prompts and responses only (``_compute_reward_colocate``); a function of the
    recipe's own then fails for want of data_source and ground truth.
    """
    missing = _absent(subject, "reward_model")
    if missing:
        return missing
    apart = bool(subject.select("reward.reward_model.enable_resource_pool"))
    custom = subject.select("reward.custom_reward_function.path") is not None
    where = subject.where("reward.reward_model.enable_resource_pool")
    if custom and not apart:
        return fail(
            "the reward model shares the trainer's devices, where verl calls no reward function of the recipe's own",
            "give it a pool (pools: {reward: …} in recipe.yaml), or remove 'reward' from recipe.yaml",
            where,
        )
    if not apart:
        return ok("shares the trainer's devices; its score alone is the reward")
    tensor = subject.integer("reward.reward_model.rollout.tensor_model_parallel_size")
    devices = subject.integer("reward.reward_model.nnodes") * subject.integer(
        "reward.reward_model.n_gpus_per_node"
    )
    if tensor < 1 or devices < 1 or devices % tensor:
        return fail(
            f"a server of {tensor} device(s) in a pool of {devices}",
            "make reward.reward_model.rollout.tensor_model_parallel_size a divisor of the pool's devices",
            subject.where("reward.reward_model.rollout.tensor_model_parallel_size"),
        )
    servers = f"{devices // tensor} server(s) of {tensor} device(s) in a pool of its own"
    return ok(servers if custom else f"{servers}; its score alone is the reward")


def _of(role: str) -> tuple[Check[Subject], ...]:
    name = role.replace("_", " ")
    each: tuple[tuple[str, str, Callable[[str, Subject], Finding]], ...] = (
        ("folder", f"the {name}'s folder and its config.json", check_folder),
        ("architecture", f"the {name}'s architectures against the recipe", check_architecture),
        ("weights", f"the {name}'s safetensors files", check_weights),
    )
    return tuple(Check(f"{role}.{part}", what, partial(function, role)) for part, what, function in each)


CHECKS = (
    *_of("critic"),
    Check(
        "critic.vocabulary", "the critic's embeddings against the policy's tokens", check_critic_vocabulary
    ),
    *_of("reward_model"),
    Check("reward_model.tokenizer", "the reward model's tokenizer and chat template", check_reward_tokenizer),
    Check("reward_model.head", "the reward model's head as its server builds it", check_reward_head),
    Check(
        "reward_model.placement", "where the reward model is served, and who calls it", check_reward_placement
    ),
)
