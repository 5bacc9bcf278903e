"""All that happens before anything is started: resolve, make assets, check, and write the run directory."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import yaml

from verl_musa.checks import Result
from verl_musa.cluster.host import check_memory, check_packages, check_port, check_shared_memory
from verl_musa.cluster.local_ray import RayPlan, object_store_bytes, plan_ray
from verl_musa.cluster.processes import OwnedProcesses
from verl_musa.cluster.software import Software
from verl_musa.errors import RunError
from verl_musa.fileio import write_atomic
from verl_musa.observe.display import Display
from verl_musa.recipe import (
    Recipe,
    Resolved,
    dump_config,
    ensure_assets,
    load_recipe,
    load_site,
    resolve,
)
from verl_musa.run import GateMode, RunOptions, gate, lock
from verl_musa.run.directory import RunDirectory, find_run, new_run_id
from verl_musa.run.facts import git_facts, needed_packages, package_versions
from verl_musa.run.finish import clean_up, write_metrics
from verl_musa.run.launch import (
    job_command,
    job_config,
    job_runtime_env,
    launch_script,
    own_variables,
    submit_script,
)
from verl_musa.run.layout import Layout
from verl_musa.run.patches import activation, refuse_drift
from verl_musa.run.record import (
    MASK,
    Attempt,
    DeviceFacts,
    GateFacts,
    OverrideFacts,
    ProcessFacts,
    RayFacts,
    RecipeFacts,
    RunRecord,
    is_secret,
    load_record,
    masked_environment,
    masked_set,
    masked_value,
    now,
)
from verl_musa.run.resume import Checkpoint, check_resumable, check_same_config, find_checkpoint


@dataclass(frozen=True)
class Prepared:
    """A run that can be started.

    Attributes:
        resolved: the recipe, resolved for the run directory.
        run: the run directory; written by :func:`write_directory`.
        record: its record, with the attempt that is about to start at the end.
        config: verl's config of this attempt.
        checkpoint: where the attempt goes on; None for a start from scratch.
        patches: the variable that activates the patch series.
        gate: what the attempt does about the correctness gate.
        golden: what the reward function did with the recipe's golden pairs; empty where the gate is off.
        there: what the hosts of a run on several run in; None on one host, and for a retry.
    """

    resolved: Resolved
    run: RunDirectory
    record: RunRecord
    config: dict[str, Any]
    checkpoint: Checkpoint | None
    patches: dict[str, str]
    gate: GateMode
    golden: tuple[Result, ...] = ()
    there: Software | None = None

    @property
    def switches(self) -> dict[str, str]:
        """The variables that activate the patch series and the gate in the job."""
        return {**self.patches, **gate.variables(self.gate)}

    @property
    def recipe(self) -> Recipe:
        """The recipe."""
        return self.resolved.recipe


def prepare(
    options: RunOptions, display: Display, layout: Layout | None = None, there: Software | None = None
) -> Prepared:
    """Check everything that can be checked without starting the job. Writes nothing but the recipe's assets.

    Before a resume on one host (not a dry run) it ends what an earlier attempt left running. ``layout``: the hosts of a run on
    several; what they have to offer is looked at by preflight, and the recipe's contents are checked already. ``there``: what
    these run in.

    Raises:
        VerlMusaError: bad input, or a host that does not fit.
    """
    lock.refuse_changed_image(options, there)
    recipe = chosen_recipe(options)
    if options.resume is None:
        run = RunDirectory((options.runs_dir / recipe.name / new_run_id()).resolve())
        prepared = _new_run(options, recipe, run, layout)
    else:
        run = find_run(options.runs_dir, recipe.name, options.resume)
        prepared = _resumed_run(options, recipe, run, display, layout)
        if not options.dry_run and layout is None:
            end_leftovers(
                prepared, display
            )  # first, for they may hold the memory and ports that are looked at next
    check_software(options, prepared.resolved)
    if layout is None:
        _check_host(options, prepared.resolved)
        _check_contents(prepared.resolved, display)
    lock.hold(options, _locked_form(prepared, recipe, options, layout), prepared.record, display, there)
    return _with_golden(replace(prepared, there=there))


def _locked_form(prepared: Prepared, recipe: Recipe, options: RunOptions, layout: Layout | None) -> Resolved:
    """What the lock holds: the recipe in its own size, wherever it is run."""
    if layout is None:
        return prepared.resolved
    return layout.as_written(recipe, prepared.run.path, options.sets)


def prepare_retry(options: RunOptions, run: RunDirectory, display: Display, layout: Layout) -> Prepared:
    """The next attempt of a run that has lost a host; what was checked before its first one is not checked again.

    Raises:
        VerlMusaError: the run cannot go on.
    """
    again = replace(options, resume=str(run.path))
    return _with_golden(_resumed_run(again, chosen_recipe(again), run, display, layout))


def restore(options: RunOptions, run: RunDirectory, layout: Layout) -> Prepared:
    """The attempt that another process has prepared and written to ``run`` with the same options.

    Raises:
        VerlMusaError: the recipe, or its record, is no longer what it was.
    """
    record = load_record(run.record)
    recipe = load_recipe(record.recipe.folder, variants=record.recipe.variants)
    given = {text.partition("=")[0].lstrip("+~") for text in options.sets}
    earlier = [text for text in record.sets if text.partition("=")[0].lstrip("+~") not in given]
    resolved = _resolve(options, recipe, run, [*earlier, *options.sets], layout)
    step, number = record.attempt.resumed_from_step, record.attempt.number
    checkpoint = Checkpoint(step, run.checkpoints / f"global_step_{step}") if step else None
    config = job_config(resolved, str(checkpoint.path) if checkpoint else None, resuming=number > 1)
    mode = gate.due(options.gate, config, recipe.trainer.module, resumed_from=step)
    patches = activation(recipe, options.allow_drift)
    return _with_golden(Prepared(resolved, run, record, config, checkpoint, patches, mode))


def chosen_recipe(options: RunOptions) -> Recipe:
    """The recipe that the user names; a run that is resumed brings its variants along.

    Raises:
        VerlMusaError: no such recipe, variant or run.
    """
    recipe = load_recipe(options.recipe, variants=options.variants)
    if options.resume is None:
        return recipe
    run = find_run(options.runs_dir, recipe.name, options.resume)
    then = load_record(run.record).recipe.variants
    if recipe.variants and list(recipe.variants) != then:
        raise RunError(
            "this run was made with other variants",
            where=str(run.record),
            found=", ".join(then) or "none",
            expected=", ".join(recipe.variants),
            fix="leave the variants out: a resumed run keeps its own",
        )
    return load_recipe(str(recipe.folder), variants=then)


def _resolve(
    options: RunOptions, recipe: Recipe, run: RunDirectory, sets: Sequence[str], layout: Layout | None
) -> Resolved:
    if layout is not None:
        resolved = layout.resolve(recipe, run.path, sets)
    else:
        resolved = resolve(recipe, run_dir=run.path, site=load_site(options.site), sets=sets)
    job_runtime_env(resolved, {})  # says what it cannot take
    return resolved


def _new_run(options: RunOptions, recipe: Recipe, run: RunDirectory, layout: Layout | None) -> Prepared:
    resolved = _resolve(options, recipe, run, options.sets, layout)
    config = job_config(resolved, None, resuming=False)
    record = RunRecord(
        run_id=run.path.name,
        status="created",
        recipe=RecipeFacts(
            name=recipe.name,
            version=recipe.version,
            folder=str(recipe.folder),
            variants=list(recipe.variants),
        ),
        created_at=now(),
        seed=resolved.seed,
        device=_device(resolved),
        host=platform.node(),
        python=platform.python_version(),
        versions=package_versions(recipe.extras),
        git=git_facts(recipe.folder),
        sets=[masked_set(text) for text in options.sets],
        overrides=_overrides(resolved),
        total_steps=_total_steps(config),
        cluster=None if layout is None else layout.facts(options.retries),
        attempts=[_attempt(1, 0)],
    )
    mode = _gate_mode(options, record, config, recipe)
    return Prepared(resolved, run, record, config, None, activation(recipe, options.allow_drift), mode)


def _resumed_run(
    options: RunOptions, recipe: Recipe, run: RunDirectory, display: Display, layout: Layout | None
) -> Prepared:
    record = load_record(run.record)
    check_resumable(record, run, recipe)
    given = {text.partition("=")[0].lstrip("+~") for text in options.sets}
    earlier = [text for text in record.sets if text.partition("=")[0].lstrip("+~") not in given]
    _refuse_masked(earlier, run)
    sets = [*earlier, *options.sets]
    resolved = _resolve(options, recipe, run, sets, layout)
    check_same_config(run, job_config(resolved, None, resuming=False), given)
    checkpoint, problems = find_checkpoint(run.checkpoints, display.phase)
    for problem in problems:
        display.note(problem)
    step = checkpoint.step if checkpoint else 0
    if checkpoint is None:
        display.note(f"{run.path.name} has no whole checkpoint: it starts again from step 1")
    else:
        how = "its hashes hold" if checkpoint.hashed else "complete and readable; no hashes were taken of it"
        display.note(f"resuming {run.path.name} after step {step}: goes on at step {step + 1} ({how})")
    config = job_config(resolved, str(checkpoint.path) if checkpoint else None, resuming=True)
    record.sets = [masked_set(text) for text in sets]
    record.overrides = _overrides(resolved)
    record.device = _device(resolved)
    record.versions = package_versions(recipe.extras)
    record.git = git_facts(recipe.folder)
    record.total_steps = _total_steps(config)
    if layout is not None:
        record.cluster = layout.facts(options.retries)
    record.summary = record.exit_reason = record.ended_at = None
    record.attempts = [*record.attempts, _attempt(record.attempt.number + 1, step)]
    record.attempt.rejected = problems
    mode = _gate_mode(options, record, config, recipe)
    return Prepared(resolved, run, record, config, checkpoint, activation(recipe, options.allow_drift), mode)


def _gate_mode(options: RunOptions, record: RunRecord, config: dict[str, Any], recipe: Recipe) -> GateMode:
    """What the attempt does about the gate; noted in the record, but where an earlier attempt has had its gate.

    Raises:
        RunError: nothing but the gate is asked for, and it does not fit.
    """
    step = record.attempt.resumed_from_step
    mode = gate.due(options.gate, config, recipe.trainer.module, resumed_from=step)
    if options.gate == "only" and mode == "off":
        raise RunError(
            "the gate needs verl's own trainer",
            where=str(recipe.document.path),
            found=f"trainer.module {recipe.trainer.module}, trainer.use_v1 {config['trainer'].get('use_v1')}",
            expected=f"{gate.V1} with trainer.use_v1 true",
            fix="run the recipe without the gate: verl-musa run",
        )
    if step == 0:
        record.gate = GateFacts(mode=mode)
    return mode


def _with_golden(prepared: Prepared) -> Prepared:
    """Score the golden pairs, where the gate is on; before a training they have to be right.

    Raises:
        DataError: they are not.
    """
    from verl_musa.data import require

    if prepared.gate == "off":
        return prepared
    results = gate.golden(prepared.resolved)
    if prepared.gate == "before":
        require(results)
    return replace(prepared, golden=tuple(results))


def _refuse_masked(sets: Sequence[str], run: RunDirectory) -> None:
    masked = [text.partition("=")[0] for text in sets if text.endswith(f"={MASK}")]
    if masked:
        raise RunError(
            f"the value of {', '.join(masked)} is a secret that was not written down",
            where=str(run.record),
            expected="it given again",
            fix=f"add --set {masked[0]}=… to the command",
        )


def _device(resolved: Resolved) -> DeviceFacts:
    device, trainer = resolved.recipe.device, resolved.config["trainer"]
    pools = {"trainer": int(trainer["nnodes"]) * int(trainer["n_gpus_per_node"])}
    if resolved.recipe.placement == "split":
        rollout = resolved.config["actor_rollout_ref"]["rollout"]
        pools["rollout"] = int(rollout["nnodes"]) * int(rollout["n_gpus_per_node"])
    return DeviceFacts(
        type=device.type,
        simulated=device.simulated,
        count=sum(pools.values()),
        pools=pools if len(pools) > 1 else {},
    )


def _overrides(resolved: Resolved) -> list[OverrideFacts]:
    """The overrides, with secrets masked in the value and in an origin that quotes it."""
    return [
        OverrideFacts(
            key=override.key,
            value=masked_value(override.path, override.value),
            origin="--set" if is_secret(override.path) else override.origin,
        )
        for override in resolved.overrides
    ]


def _total_steps(config: dict[str, Any]) -> int | None:
    total = config["trainer"].get("total_training_steps")
    return total if isinstance(total, int) else None


def _attempt(number: int, resumed_from: int) -> Attempt:
    me = psutil.Process()
    runner = ProcessFacts(pid=os.getpid(), started=me.create_time())
    return Attempt(number=number, started_at=now(), resumed_from_step=resumed_from, runner=runner)


def check_software(options: RunOptions, resolved: Resolved) -> None:
    """Raise HostError where this environment lacks a package, or a patch does not fit one."""
    check_packages(needed_packages(resolved), resolved.recipe.extras)
    refuse_drift(options.allow_drift)


def _check_host(options: RunOptions, resolved: Resolved) -> None:
    cluster = resolved.recipe.cluster
    check_memory(cluster.host_memory_gib)
    check_shared_memory(object_store_bytes())
    for port, option in ((options.ray_port, "--ray-port"), (options.dashboard_port, "--dashboard-port")):
        if port is not None:
            check_port(port, option)


def _check_contents(resolved: Resolved, display: Display) -> None:
    from verl_musa.data import require
    from verl_musa.rules import check_recipe

    if resolved.recipe.assets is not None:
        display.phase("making the recipe's assets")
        ensure_assets(resolved.recipe, progress=display.note)
    display.phase("checking model, data and reward function")
    # verl says what it has against the configuration itself, seconds after this.
    require(check_recipe(resolved, verl=False).results)


def plan(options: RunOptions, prepared: Prepared, temp_dir: Path) -> RayPlan:
    """The Ray for this run."""
    cluster = prepared.recipe.cluster
    return plan_ray(
        num_cpus=cluster.cpus_per_node,
        num_gpus=cluster.devices_per_node,
        temp_dir=temp_dir,
        port=options.ray_port,
        dashboard_port=options.dashboard_port,
    )


def end_leftovers(prepared: Prepared, display: Display) -> None:
    """Before a resume: end what an earlier attempt left running, and remove what it left behind."""
    owned = OwnedProcesses(prepared.run.path.name)
    left = owned.refresh()
    if left:
        display.note(f"ending {len(left)} process(es) that an earlier attempt of this run left behind")
    problems = clean_up(prepared.run, prepared.record, owned)
    for problem in problems:
        display.note(problem)
    if owned.refresh():
        raise RunError(
            "processes of an earlier attempt cannot be ended",
            where=platform.node(),
            found=", ".join(str(process.pid) for process in owned.refresh()),
            expected="none",
            fix="end them as the user that owns them",
        )


def _keep_proofs(run: RunDirectory, number: int) -> None:
    """Set the proofs and patch records of an earlier attempt aside: this attempt has to bring its own."""
    for folder in (run.proofs, run.patches):
        if folder.is_dir():
            folder.rename(run.logs / f"{folder.name}-attempt-{number}")
    run.proofs.mkdir()


def write_directory(prepared: Prepared, ray_plan: RayPlan | None, python: str | None = None) -> None:
    """Write the run directory, all but metrics and report, with status ``created``.

    ``ray_plan``: the Ray of a run on one host; None on several, whose ``launch.sh`` hands the job to a Ray that is up.
    ``python``: the interpreter on the hosts, where it is not this one.
    """
    run, record = prepared.run, prepared.record
    if record.attempt.number == 1:
        run.create()
    else:
        _keep_proofs(run, record.attempt.number - 1)
    if prepared.gate != "off":
        (run.logs / gate.JOB_FILE).unlink(missing_ok=True)
        gate.hand_over(prepared.resolved, run)
    if prepared.there is not None or record.cluster is None:  # a retry's is there: its hosts hold the same
        lock.keep_provenance(run, prepared.there)
    own = own_variables(prepared.recipe, run, record.attempt, prepared.switches)
    environment = job_runtime_env(prepared.resolved, own)
    private = any(is_secret(override.path) for override in prepared.resolved.overrides)
    write_atomic(run.config, dump_config(prepared.config), mode=0o600 if private else 0o644)
    write_atomic(run.runtime_env, yaml.safe_dump(masked_environment(environment), sort_keys=True))
    command = job_command(prepared.recipe, run, python)
    script = (
        submit_script(command, environment)
        if ray_plan is None
        else launch_script(command, environment["env_vars"], ray_plan)
    )
    write_atomic(run.launch, script, mode=0o755)
    write_metrics(run, record)
    record.attempt.ray = None if ray_plan is None else _ray_facts(ray_plan)
    record.set_status("created")
    record.save(run.record)


def _ray_facts(ray_plan: RayPlan) -> RayFacts:
    return RayFacts(
        temp_dir=str(ray_plan.temp_dir),
        port=ray_plan.port,
        dashboard_port=ray_plan.dashboard_port,
        num_gpus=ray_plan.num_gpus,
        num_cpus=ray_plan.num_cpus,
        object_store_bytes=ray_plan.object_store_bytes,
    )
