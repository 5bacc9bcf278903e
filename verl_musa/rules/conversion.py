"""The converted weights of a recipe against its model and its trainer, and the model's facts against its folder."""

from __future__ import annotations

from verl_musa.checkpoint.layout import Layout, check_layout
from verl_musa.checkpoint.spec import spec_from_config
from verl_musa.checks import Check, Finding, fail, ok, unknown, warn
from verl_musa.data.arithmetic import ACTOR
from verl_musa.data.sizes import needs_critic, needs_reference, trainer_layout
from verl_musa.data.subject import Subject
from verl_musa.errors import CheckpointError
from verl_musa.recipe import MEGATRON
from verl_musa.rules.layout import is_megatron, key, written


def check_facts(subject: Subject) -> Finding:
    """What recipe.yaml says about the model is complete, and is what its folder says where that is there."""
    model = subject.resolved.recipe.model
    where = subject.resolved.recipe.document.where(("model", "config"))
    on_disk = subject.model_file()
    if not model.config:
        if on_disk is not None or subject.resolved.recipe.assets is not None:
            return ok("none in recipe.yaml: the model's own config.json is read")
        return unknown("no config.json and no model.config: layout and memory cannot be looked at",
                       "add model.config to recipe.yaml", subject.resolved.recipe.document.where(("model",)))  # fmt: skip
    try:
        spec = spec_from_config({"architectures": [model.architecture], **model.config}, where)
    except CheckpointError as error:
        named = [name for name in model.config if name in str(error)]
        error.where = subject.resolved.recipe.document.where(("model", "config", *named[-1:]))
        raise
    if on_disk is not None:
        for name, value in model.config.items():
            text = on_disk.get("text_config", on_disk)
            if name in text and text[name] != value:
                return fail(f"model.config.{name} is {value!r}, config.json has {text[name]!r}", "take the numbers of the model that is there, or put the right model there",
                            subject.resolved.recipe.document.where(("model", "config", name)))  # fmt: skip
    if model.hub is not None and model.revision is None:
        return warn(
            f"{model.hub} without a revision: what the name means may change",
            "add model.revision, the commit of the hub repository",
            subject.resolved.recipe.document.where(("model", "hub")),
        )
    return ok(
        f"{spec.layers} layers of {spec.hidden}"
        + (f", revision {model.revision[:8]}" if model.revision else "")
    )


def check_used(subject: Subject) -> Finding:
    """What is converted is what the trainer loads, in the type that it computes in."""
    recipe = subject.resolved.recipe
    asked = {"actor": True, "ref": needs_reference(subject), "critic": needs_critic(subject)}
    loading = {
        role: block
        for role, block in MEGATRON.items()
        if asked[role]
        and is_megatron(subject, block.removesuffix(".megatron"))
        and subject.select(f"{block}.use_dist_checkpointing")
    }
    made = {role: (index, one) for index, one in enumerate(recipe.conversion) for role in one.roles}
    for role, (index, one) in made.items():
        where = recipe.document.where(("conversion", index, "roles"))
        if role not in loading:
            return warn(
                f"conversion has the role {role}, which is not made, or not by Megatron",
                "remove it from roles",
                where,
            )
        dtype = str(subject.select(f"{MEGATRON[role]}.dtype"))
        if one.dtype is not None and dtype != one.dtype:
            return warn(
                f"{MEGATRON[role]}.dtype is {dtype}, the conversion writes {one.dtype}",
                "make them equal",
                recipe.document.where(("conversion", index, "dtype")),
            )
        rows = subject.model_config()
        if (
            role != "critic"
            and rows is not None
            and one.pad_vocab > 1
            and rows.get("vocab_size", 0) % one.pad_vocab
        ):
            return fail(f"pad_vocab {one.pad_vocab} adds rows to a vocabulary of {rows['vocab_size']}, and verl pads none", "use a divisor, or remove it",
                        recipe.document.where(("conversion", index, "pad_vocab")))  # fmt: skip
    return ok(
        ", ".join(f"{role} {'converted' if role in made else 'a checkpoint of its own'}" for role in loading)
        or "no conversion"
    )


def check_possible(subject: Subject) -> Finding:
    """The model can be converted, and run under the trainer's layout, by the conversion's own arithmetic."""
    recipe = subject.resolved.recipe
    if not recipe.conversion:
        return ok("no conversion")
    config = subject.model_config()
    if config is None:
        return unknown("the model's sizes are not known (see conversion.facts)")
    where = written(subject, *(key(ACTOR, size) for size in ("tp", "pp", "ep", "etp")))
    spec = spec_from_config(config, recipe.document.where(("model", "config")))
    sizes = trainer_layout(subject)
    layout = Layout(tp=sizes.tp, pp=sizes.pp, ep=sizes.ep, cp=sizes.cp, etp=sizes.etp, world=sizes.world)
    check_layout(spec, layout, spec.vocab, where)
    return ok(f"{spec.architecture} under {layout}, vocabulary {spec.vocab} unpadded")


CHECKS = (
    Check("conversion.facts", "facts of the model against its architecture and folder", check_facts),
    Check("conversion.used", "converted weights against what the trainer loads", check_used),
    Check("conversion.possible", "conversion and layout by the model's sizes", check_possible),
)
