"""``launch.sh`` of a recipe: its job by hand, on the head node of a Ray that is up on all hosts.

Nothing of the machine that writes it goes into it: folders and values of the site are variables that the script asks for.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from verl_musa.recipe import UNSET, Recipe, Resolved, Site, resolve
from verl_musa.run.launch import expectation
from verl_musa.run.record import is_secret_variable

RUN_DIR = (
    "/verl-musa-run-dir/RUN-ID"  # verl-musa: ignore[path.machine] stands for the run directory, never opened
)
"""Stands for the run directory while the script is written."""

_SITE = re.compile(re.escape(UNSET) + r"(\w+)>")
_OWN = {
    "VERL_MUSA_RUN_ID": "${run_id}",
    "VERL_MUSA_RUN_DIR": "${run_dir}",
    "VERL_FILE_LOGGER_PATH": "${run_dir}/logs/metrics-1.jsonl",
}

_HEAD = """\
#!/usr/bin/env bash
# Made by `verl-musa recipe launch {title}`; a test holds it to the recipe. Change the recipe, not this file.
#
# The job of this recipe by hand, without checks, progress or report: on the head node, in the recipe's image, where Ray is up on
# {nodes} host(s) with {devices} devices each. Further arguments are verl's overrides, for example trainer.total_training_steps=4.
set -euo pipefail
cd -- "$(dirname -- "${{BASH_SOURCE[0]}}")"
recipe_dir=$PWD
"""

_SUBMIT = """\
# Patches are applied in every process; the plan depends on what is installed.
{plan}=$(python3 -c 'import sys; from verl_musa.patching import activation_env; print(activation_env(simulated={simulated})[sys.argv[1]])' {plan})
export {plan}
mkdir -p -- "${{run_dir}}/logs"
# Ray carries the variables to the workers; exports of this shell do not get there.
runtime_env=$(python3 -c 'import json, os, sys; print(json.dumps({{**json.loads(sys.argv[1]), "env_vars": {{n: os.environ[n] for n in sys.argv[2:]}}}}))' \\
  {rest} {names})
echo "run ${{run_id}} in ${{run_dir}}; follow it: ray job logs --address ${{RAY_JOBS_ADDRESS}} --follow ${{run_id}}"
exec ray job submit --address "${{RAY_JOBS_ADDRESS}}" --submission-id "${{run_id}}" --no-wait --runtime-env-json "${{runtime_env}}" -- \\
"""


def recipe_script(recipe: Recipe, site: Site, sets: Sequence[str] = ()) -> str:
    """The script of ``recipe``; ``site`` is looked at for nothing but its names, whose values stay variables.

    Raises:
        RecipeError: a mistake in the recipe's files.
    """
    del site  # values of a site belong to the host that runs the script, not to the one that writes it
    resolved = resolve(recipe, run_dir=Path(RUN_DIR), site=Site(), sets=sets, without_site=True)
    cluster = recipe.cluster
    lines = [_HEAD.format(title=recipe.title, nodes=cluster.nodes, devices=cluster.devices_per_node).rstrip()]
    lines += [
        *(
            f': "${{SITE_{name.upper()}:?set it to the value that site.yaml has for {name}}}"'
            for name in sorted(resolved.missing_site)
        ),
        ': "${RAY_JOBS_ADDRESS:=http://127.0.0.1:8265}"',
        f"run_id=${{RUN_ID:-{recipe.name}-$(date -u +%Y%m%d-%H%M%S)}}",
        _run_dir(resolved),
    ]
    variables = _variables(resolved)
    for name, text in sorted(variables.items()):
        lines.append(
            f': "${{{name}:?is a secret, set it first}}"'
            if is_secret_variable(name)
            else f"export {name}={_quoted(text, resolved)}"
        )
    rest = {key: value for key, value in resolved.runtime_env.items() if key != "env_vars"}
    names = sorted([*variables, _plan_name()])
    lines.append(
        _SUBMIT.format(
            plan=_plan_name(),
            simulated=recipe.device.simulated,
            rest=shlex.quote(json.dumps(rest, sort_keys=True)),
            names=" ".join(names),
        ).rstrip()
    )
    lines.append(f"  python3 -m {recipe.trainer.module} --config-name {recipe.trainer.config_name} \\")
    texts = ["hydra.run.dir=" + RUN_DIR + "/logs/hydra", *(o.text for o in resolved.overrides)]
    lines += [f"  {_quoted(text, resolved)} \\" for text in texts]
    return "\n".join([*lines, '  "$@"', ""])


def _plan_name() -> str:
    from verl_musa._start import PLAN_ENV

    return PLAN_ENV


def _run_dir(resolved: Resolved) -> str:
    below = f"runs/{resolved.recipe.name}/${{run_id}}"
    default = (
        f"${{SITE_SHARED}}/{below}" if "shared" in resolved.missing_site else f"${{recipe_dir}}/../../{below}"
    )
    return f"run_dir=${{RUN_DIR:-{default}}}"


def _variables(resolved: Resolved) -> dict[str, str]:
    """What the job's processes get, with shell variables in it where a value is known only when the script runs."""
    return {
        **resolved.runtime_env.get("env_vars", {}),
        **_OWN,
        "VERL_MUSA_EXPECT": json.dumps(expectation(resolved.recipe)),
        "VERL_PLATFORM": resolved.recipe.device.type,
        "PYTHONUNBUFFERED": "1",
    }


def _quoted(text: str, resolved: Resolved) -> str:
    """``text`` as one word of the shell: literal, but for the folders and site values that are variables of the script."""
    markers = {RUN_DIR: "${run_dir}", "RUN-ID": "${run_id}", str(resolved.recipe.folder): "${recipe_dir}"}
    pattern = re.compile(
        "|".join([*(re.escape(marker) for marker in markers), _SITE.pattern, r"\$\{run_\w+\}"])
    )
    parts, end = [], 0
    for match in pattern.finditer(text):
        found = match.group()
        variable = markers.get(found) or (
            found if found.startswith("${run_") else f"${{SITE_{match.group(1).upper()}}}"
        )
        parts += [_escaped(text[end : match.start()]), variable]
        end = match.end()
    if not parts and shlex.quote(text) == text:
        return text
    return f'"{"".join(parts)}{_escaped(text[end:])}"'


def _escaped(text: str) -> str:
    """``text`` as it stands between double quotes."""
    return re.sub(r'([\\"$`])', r"\\\1", text)
