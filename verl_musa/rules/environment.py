"""The job's environment: variables that MUSA needs, that do harm there, or that say nothing."""

from __future__ import annotations

import re
from pathlib import Path

from verl_musa.checks import Check, Finding, fail, ok, warn
from verl_musa.data.subject import Subject
from verl_musa.errors import RecipeError
from verl_musa.recipe import read_document

NEEDED = {
    "RAY_EXPERIMENTAL_NOSET_MUSA_VISIBLE_DEVICES": (
        "1",
        "Ray otherwise narrows each worker to one device, where MCCL was reported to fail",
    ),
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": (
        "0",
        "Ray otherwise hides all devices from processes that ask for none",
    ),
}
"""Variable -> (text that it must have, why)."""

HARMFUL = {
    "MCCL_MIN_P2P_NCHANNELS": "was reported to corrupt numbers on MUSA",
    "MUSA_LAUNCH_BLOCKING": "makes every kernel wait, and was reported to desynchronise SGLang's schedulers",
    "VERL_USE_EXTERNAL_MODULES": "loads plugins beside the one that this package registers",
    "CUDA_VISIBLE_DEVICES": "narrows the devices that verl and Ray divide among the workers",
    "MUSA_VISIBLE_DEVICES": "narrows the devices that verl and Ray divide among the workers",
}
FOREIGN = re.compile(r"^(NCCL|HCCL|RCCL)_")
SELF_REFERENCE = re.compile(r"\$\{?(\w+)\}?")
HOOK = "worker_process_setup_hook"


def where_of(subject: Subject, name: str) -> str:
    """``file:line`` that sets the variable ``name``: a variant's, runtime_env.yaml's, or the network block's."""
    recipe = subject.resolved.recipe
    for layer in reversed(recipe.layers):
        if name in layer.variant.env_vars:
            return layer.document.where(("env_vars", name))
    file = recipe.folder / "runtime_env.yaml"
    try:
        document = read_document(file)
    except RecipeError:
        return str(file)
    if ("env_vars", name) in document.lines:
        return document.where(("env_vars", name))
    return (
        recipe.document.where(("network",)) if recipe.network is not None else document.where(("env_vars",))
    )


def variables(subject: Subject) -> dict[str, str]:
    """The recipe's variables."""
    return dict(subject.resolved.runtime_env.get("env_vars", {}))


def check_needed(subject: Subject) -> Finding:
    """What every job on MUSA needs is there, the guard of each worker included."""
    given = variables(subject)
    for name, (text, why) in NEEDED.items():
        if given.get(name) != text:
            found = f"{name} is {given[name]!r}" if name in given else f"{name} is not set"
            return fail(
                f"{found}: {why}",
                f'add {name}: "{text}" to env_vars of runtime_env.yaml',
                where_of(subject, name),
            )
    if given.get("VERL_PLATFORM", "musa") != "musa":
        return fail(
            f"VERL_PLATFORM is {given['VERL_PLATFORM']!r}; the run itself sets musa",
            "remove the line",
            where_of(subject, "VERL_PLATFORM"),
        )
    hook = subject.resolved.runtime_env.get(HOOK)
    if not hook:
        return warn(f"{HOOK} is not set: a worker without this plugin is not refused", f"add '{HOOK}: verl_musa.device.guard.on_worker_start'",
                    str(Path(subject.resolved.recipe.folder, "runtime_env.yaml")))  # fmt: skip
    return ok(f"{len(given)} variables")


def check_harmful(subject: Subject) -> Finding:
    """Nothing is set that does harm on MUSA, or is meant for another vendor's library."""
    for name in variables(subject):
        if name in HARMFUL:
            return warn(f"{name} {HARMFUL[name]}", "remove the line", where_of(subject, name))
        if FOREIGN.match(name):
            own = f"MCCL_{name.partition('_')[2]}"
            return warn(
                f"{name} is another vendor's: MCCL does not read it",
                f"write {own} if MCCL has such a variable, else remove it",
                where_of(subject, name),
            )
    return ok("none")


def check_empty(subject: Subject) -> Finding:
    """No variable is empty, which Ray passes on as it is, or refers to another, which nobody replaces."""
    for name, text in variables(subject).items():
        if not text.strip():
            return fail(
                f"{name} is empty: it is set to nothing in every worker, not left as it was",
                "give it a value, or remove the line",
                where_of(subject, name),
            )
        reference = SELF_REFERENCE.search(text)
        if reference is not None:
            return fail(f"{name} holds {reference.group()!r}, which Ray hands to the workers as it is: no shell replaces it",
                        "write the text out, or use ${site.NAME}", where_of(subject, name))  # fmt: skip
    return ok("all have texts of their own")


def check_network(subject: Subject) -> Finding:
    """Hosts that have to reach each other know which interface to use."""
    recipe = subject.resolved.recipe
    nodes = subject.integer("trainer.nnodes")
    where = recipe.document.where(("network",))
    profile = None if recipe.network is None else recipe.network.profile
    if nodes > 1 and profile in {None, "single"} and subject.resolved.interface_by_host:
        return ok("each host's own interface, by its address in the training network")
    if nodes > 1 and profile in {None, "single"}:
        given = variables(subject)
        if given.get("MCCL_SOCKET_IFNAME") and given.get("GLOO_SOCKET_IFNAME"):
            return ok(f"{given['MCCL_SOCKET_IFNAME']}, by runtime_env.yaml")
        return fail(f"{nodes} hosts, and no training interface: with two networks, libraries choose the first one that they find",
                    'add network: {profile: roce, interface: "${site.training_interface}"} to recipe.yaml', where)  # fmt: skip
    if nodes == 1 and profile in {"tcp", "roce"}:
        return warn(f"one host with the network profile {profile}", "set network: {profile: single}", where)
    if profile == "tcp" and nodes > 1:
        return warn(
            "tcp: weights and gradients go through sockets",
            "use roce where the hosts have RDMA adapters",
            where,
        )
    return ok(profile or "one host")


CHECKS = (
    Check("env.needed", "variables without which MUSA is not used", check_needed),
    Check("env.harmful", "variables that do harm on MUSA", check_harmful),
    Check("env.empty", "variables that say nothing", check_empty),
    Check("env.network", "network profile against the number of hosts", check_network),
)
