"""The command of the job, its environment, and ``launch.sh``, which does the same by hand."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Mapping
from typing import Any

from verl_musa import extras
from verl_musa.cluster.local_ray import RayPlan
from verl_musa.cluster.processes import TAG
from verl_musa.errors import RecipeError
from verl_musa.recipe import Recipe, Resolved
from verl_musa.run.directory import RunDirectory
from verl_musa.run.record import Attempt, is_secret_variable

BACKENDS = {"musa": "mccl"}
RAY_SIZES = ("address", "num_cpus", "num_gpus", "object_store_memory", "resources")


def job_command(recipe: Recipe, run: RunDirectory, python: str | None = None) -> list[str]:
    """The trainer with this run's own config; Hydra's own notes go to the logs folder. ``python``: on the head, if not this one."""
    return [
        python or sys.executable,
        "-m",
        recipe.trainer.module,
        "--config-path",
        str(run.path),
        "--config-name",
        "config",
        f"hydra.run.dir={run.logs / 'hydra'}",
    ]


def expectation(recipe: Recipe) -> dict[str, Any]:
    """What each worker has to prove: the device, the collective backend, and whether it is simulated."""
    device = recipe.device
    return {"device": device.type, "backend": BACKENDS[device.type], "simulated": device.simulated}


def own_variables(
    recipe: Recipe, run: RunDirectory, attempt: Attempt, switches: Mapping[str, str]
) -> dict[str, str]:
    """The variables that every process of the run carries, beside those of the recipe's ``runtime_env.yaml``.

    ``switches`` is what :func:`verl_musa.run.patches.activation` and :func:`verl_musa.run.gate.variables` returned.
    """
    return {
        **switches,
        TAG: run.path.name,
        "VERL_MUSA_RUN_DIR": str(run.path),
        "VERL_MUSA_EXPECT": json.dumps(expectation(recipe)),
        "VERL_PLATFORM": recipe.device.type,
        "VERL_FILE_LOGGER_PATH": str(run.logs / attempt.metrics_name),
        "PYTHONUNBUFFERED": "1",
    }


def job_runtime_env(resolved: Resolved, own: Mapping[str, str]) -> dict[str, Any]:
    """The ``runtime_env`` that is submitted: the recipe's, our variables on top, and the recipe's extras on ``PYTHONPATH``.

    Raises:
        RecipeError: the recipe's one holds a local folder, which Ray would have to upload.
    """
    for name in ("working_dir", "py_modules"):
        if name in resolved.runtime_env:
            raise RecipeError(
                f"runtime_env.yaml sets {name}",
                where=str(resolved.recipe.folder / "runtime_env.yaml"),
                found=repr(resolved.runtime_env[name]),
                expected="no upload of code: the image and the recipe folder hold all that a job needs",
                fix=f"remove {name}; put modules on PYTHONPATH through env_vars if need be",
            )
    variables = {**resolved.runtime_env.get("env_vars", {}), **own}
    aside = [str(folder) for folder in extras.folders(resolved.recipe.extras)]
    if aside:
        variables["PYTHONPATH"] = os.pathsep.join([*aside, *filter(None, [variables.get("PYTHONPATH")])])
    return {**resolved.runtime_env, "env_vars": variables}


def job_config(resolved: Resolved, checkpoint: str | None, *, resuming: bool) -> dict[str, Any]:
    """Verl's config as this attempt runs it.

    verl's file logger is switched on (``metrics.jsonl`` is made from it), and a resumed run names its checkpoint, so
    that verl takes that one and no other.
    """
    config = json.loads(json.dumps(resolved.config))
    trainer = config["trainer"]
    loggers = trainer.get("logger") or []
    loggers = [loggers] if isinstance(loggers, str) else list(loggers)
    trainer["logger"] = loggers if "file" in loggers else [*loggers, "file"]
    # Sizes are the business of the Ray that this run starts: ray.init refuses them when it joins one.
    sizes = config.get("ray_kwargs", {}).get("ray_init", {})
    sizes.update({name: None for name in RAY_SIZES if name in sizes})
    if resuming:
        trainer["resume_mode"] = "resume_path" if checkpoint else "disable"
        trainer["resume_from_path"] = checkpoint
    return dict(config)


def launch_script(command: list[str], variables: Mapping[str, str], plan_sizes: RayPlan) -> str:
    """``launch.sh``: the same job without this tool, in a Ray of its own that ends with it.

    Secrets are not written: the script asks for them by name.
    """
    lines = [
        "#!/usr/bin/env bash",
        "# The job of this run by hand, for a look at one thing at a time. Started like this it writes into this same",
        "# run directory, but nothing watches it: no progress, no proof of the device, no report.",
        "# shellcheck disable=SC2016,SC1003  # every value is meant literally",
        "set -euo pipefail",
        "unset RAY_ADDRESS",
    ]
    for name, value in sorted(variables.items()):
        if is_secret_variable(name):
            lines.append(f': "${{{name}:?is a secret of this run, set it first}}"')
            lines.append(f"export {name}")
        else:
            lines.append(f"export {name}={shlex.quote(value)}")
    sizes = {
        "address": "local",
        "num_cpus": plan_sizes.num_cpus,
        "num_gpus": plan_sizes.num_gpus,
        "object_store_memory": plan_sizes.object_store_bytes,
        "include_dashboard": "false",
    }
    whole = [*command, *(f"++ray_kwargs.ray_init.{name}={value}" for name, value in sizes.items())]
    return "\n".join([*lines, f'exec {shlex.join(whole)} "$@"', ""])


_CARRIED = (
    "import json, os, sys; "
    'print(json.dumps({**json.loads(sys.argv[1]), "env_vars": {n: os.environ[n] for n in sys.argv[2:]}}))'
)


def submit_script(command: list[str], environment: Mapping[str, Any]) -> str:
    """``launch.sh`` of a run on several hosts: the same job, handed to a Ray that is up on all of them.

    Secrets are not written: the script asks for them by name.
    """
    variables = environment.get("env_vars", {})
    rest = {name: value for name, value in environment.items() if name != "env_vars"}
    lines = [
        "#!/usr/bin/env bash",
        "# The job of this run by hand, in a Ray that is up on all hosts (`verl-musa cluster up`). It writes into this same run",
        "# directory, but nothing watches it: no progress, no proof of the device, no report.",
        "# shellcheck disable=SC2016,SC1003  # every value is meant literally",
        "set -euo pipefail",
        ': "${RAY_JOBS_ADDRESS:?set it to the dashboard, such as http://192.0.2.11:8265}"',
        "unset RAY_ADDRESS",
    ]
    for name, value in sorted(variables.items()):
        if is_secret_variable(name):
            lines += [f': "${{{name}:?is a secret of this run, set it first}}"', f"export {name}"]
        else:
            lines.append(f"export {name}={shlex.quote(value)}")
    names = shlex.join(sorted(variables))
    lines += [
        "# Ray carries the variables to the workers; exports of this shell do not get there.",
        f"runtime_env=$(python3 -c {shlex.quote(_CARRIED)} \\",
        f"  {shlex.quote(json.dumps(rest, sort_keys=True))} {names})",
        'exec ray job submit --address "${RAY_JOBS_ADDRESS}" --runtime-env-json "${runtime_env}" -- \\',
        f'  {shlex.join(command)} "$@"',
    ]
    return "\n".join([*lines, ""])
