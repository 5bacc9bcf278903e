"""From a recipe to everything a run needs: verl's whole config, the overrides behind it and the runtime environment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from verl_musa.errors import RecipeError
from verl_musa.recipe._yaml import Document, Location, read_document
from verl_musa.recipe.assets import assets_dir
from verl_musa.recipe.compose import base_config, compose, config_dir, selects_group
from verl_musa.recipe.network import with_network
from verl_musa.recipe.overrides import Override, layer, overrides_from, overrides_from_sets
from verl_musa.recipe.schema import Recipe
from verl_musa.recipe.sglang import refuse_second_setting, sglang_overrides
from verl_musa.recipe.site import Site
from verl_musa.recipe.validation import describe
from verl_musa.recipe.variables import UNSET, Variables
from verl_musa.recipe.variants import lay_over_config, part

CONFIG_FILE = "config.yaml"
RUNTIME_ENV_FILE = "runtime_env.yaml"
SEED_NAMES = ("seed", "data_loader_seed")
OPEN = "???"
"""OmegaConf's mark for a value that must still be given."""

MEGATRON = {
    "actor": "actor_rollout_ref.actor.megatron",
    "ref": "actor_rollout_ref.ref.megatron",
    "critic": "critic.megatron",
}
"""Where verl's config has the Megatron engine of each role."""

PROTECTED_VARIABLES = ("VERL_MUSA_RUN_ID", "VERL_MUSA_RUN_DIR", "VERL_MUSA_EXPECT")
"""Set by the run itself; a recipe that set them could make a wrong device look right."""


@dataclass(frozen=True, kw_only=True)
class Resolved:
    """A recipe with every variable filled in.

    Attributes:
        recipe: variables substituted; ``model.path`` and ``data`` hold absolute paths.
        run_dir: the run directory, absolute.
        assets_dir: the folder of the recipe's assets (there or not), None where it makes none.
        overrides: in the order in which Hydra applies them.
        config: verl's composed config as plain data; interpolations kept, ``???`` where verl leaves a value open.
        runtime_env: the ``runtime_env`` of the Ray job.
        seed: the recipe's seed.
        missing_site: names of the site that are used and not set -> the first place that uses each.
        interface_by_host: whether each host is told its own training interface, so that the recipe needs to name none.
    """

    recipe: Recipe
    run_dir: Path
    assets_dir: Path | None
    overrides: tuple[Override, ...]
    config: dict[str, Any]
    runtime_env: dict[str, Any]
    seed: int
    missing_site: Mapping[str, str] = field(default_factory=dict)
    interface_by_host: bool = False

    def select(self, path: str, default: Any = None) -> Any:
        """Value of ``path`` in verl's config, interpolations resolved; ``default`` where unset, open or unresolvable."""
        from omegaconf import OmegaConf
        from omegaconf.errors import OmegaConfBaseException

        try:
            value = OmegaConf.select(self._tree, path)
            if OmegaConf.is_config(value):
                value = OmegaConf.to_container(value, resolve=True)
        except OmegaConfBaseException:
            return default
        return default if value is None or value == OPEN else value

    @cached_property
    def _tree(self) -> Any:
        from omegaconf import OmegaConf

        return OmegaConf.create(self.config)

    def origin(self, path: str) -> str:
        """Where ``path`` of ``config`` was set: an override's origin, or verl's default."""
        fitting = [o.origin for o in self.overrides if o.path == path or path.startswith(f"{o.path}.")]
        return fitting[-1] if fitting else f"verl's default for {path}"


def resolve(
    recipe: Recipe,
    *,
    run_dir: Path,
    site: Site,
    sets: Sequence[str] = (),
    without_site: bool = False,
    cache: Path | None = None,
) -> Resolved:
    """Resolve ``recipe`` for a run in ``run_dir``. Starts nothing, makes no file and imports neither verl nor torch.

    With ``without_site`` a name that the site does not set is no error: it becomes ``<site.NAME>``, and ``missing_site`` says
    so. Such a recipe can be checked and planned, not run. ``cache``: where assets are kept, as for :func:`assets_dir`.

    Raises:
        RecipeError: any mistake in ``recipe.yaml``, ``config.yaml``, ``runtime_env.yaml`` or ``sets``.
        HostError: verl is not installed.
    """
    run_dir = run_dir.absolute()
    assets = assets_dir(recipe, cache)
    folders = {"run.dir": run_dir, "recipe.dir": recipe.folder}
    if assets is not None:
        folders["assets.dir"] = assets
    missing: dict[str, str] = {}
    variables = Variables(site=site, folders=folders, missing=missing if without_site else None)
    filled = _fill(recipe, variables)
    folder = config_dir(recipe.trainer.module)
    written = lay_over_config(
        _read_overrides(recipe.folder / CONFIG_FILE, variables), recipe.layers, variables
    )
    given = [_filled_set(override, variables) for override in overrides_from_sets(sets)]
    groups = tuple(o.text for o in layer(written, given) if selects_group(folder, o))
    derived = _derived(filled, run_dir, _seeds(folder, recipe.trainer.config_name, groups))
    _refuse_owned(written, derived)
    server = sglang_overrides(recipe)
    refuse_second_setting(written, server)
    overrides = tuple(layer([*derived, *written, *server], given))
    return Resolved(
        recipe=filled,
        run_dir=run_dir,
        assets_dir=assets,
        overrides=overrides,
        config=compose(folder, recipe.trainer.config_name, overrides),
        runtime_env=with_network(_runtime_env(recipe, variables), filled),
        seed=recipe.seed,
        missing_site=missing,
    )


def _filled_set(override: Override, variables: Variables) -> Override:
    value = variables.substitute(override.value, lambda _: override.origin)
    return Override(override.key, value, override.origin)


def _fill(recipe: Recipe, variables: Variables) -> Recipe:
    """``recipe`` with its variables substituted and its file names made absolute."""
    document = recipe.document

    def fill(location: Location, value: Any) -> Any:
        return variables.substitute(value, lambda inner: document.where((*location, *inner)), ())

    def path(location: Location, value: str) -> str:
        return str(_absolute(fill(location, value), recipe, location))

    models = {
        name: model.model_copy(update={"path": path((name, "path"), model.path)})
        for name, model in (
            ("model", recipe.model),
            ("critic", recipe.critic),
            ("reward_model", recipe.reward_model),
        )
        if model is not None
    }
    data = recipe.data.model_copy(
        update={
            name: tuple(
                path(("data", name, index), file) for index, file in enumerate(getattr(recipe.data, name))
            )
            for name in ("train", "val")
        }
    )
    conversion = tuple(
        one.model_copy(update={"output": path(("conversion", index, "output"), one.output)})
        for index, one in enumerate(recipe.conversion)
    )
    network = recipe.network
    if network is not None:
        network = network.model_copy(update=fill(("network",), network.model_dump(exclude_none=True)))
    return recipe.model_copy(update={**models, "data": data, "conversion": conversion, "network": network})


def _absolute(text: str, recipe: Recipe, location: Location) -> Path:
    """An absolute path as it is; a relative one inside the recipe folder."""
    path = Path(text)
    if path.is_absolute() or text.startswith(UNSET):
        return path
    inside = (recipe.folder / path).resolve()
    if not inside.is_relative_to(recipe.folder):
        raise RecipeError(
            f"{'.'.join(map(str, location))} leaves the recipe folder",
            where=recipe.document.where(location),
            found=repr(text),
            expected=f"a path inside {recipe.folder}, or an absolute one",
            fix="start the path with ${assets.dir}, ${recipe.dir} or ${site.NAME}",
        )
    return inside


def _read_overrides(path: Path, variables: Variables) -> list[Override]:
    document = read_document(path)
    filled = variables.substitute(document.value, document.where)
    return overrides_from(Document(path=path, value=filled, lines=document.lines))


def _seeds(folder: Path, name: str, groups: tuple[str, ...]) -> list[str]:
    """Paths of every seed in verl's defaults that is a value of its own rather than a reference to another key."""
    from hydra.errors import HydraException
    from omegaconf import OmegaConf

    try:
        base = OmegaConf.to_container(base_config(folder, name, groups), resolve=False)
    except HydraException:
        return []  # compose() says what is wrong with the config name or group, with the override's origin
    return list(_seed_paths(base, ""))


def _seed_paths(node: Any, prefix: str) -> Iterator[str]:
    for key, value in node.items():
        if isinstance(value, dict):
            yield from _seed_paths(value, f"{prefix}{key}.")
        elif key in SEED_NAMES and not isinstance(value, str):
            yield f"{prefix}{key}"


def _derived(recipe: Recipe, run_dir: Path, seeds: Sequence[str]) -> list[Override]:
    """What recipe.yaml says about verl's config."""
    values: list[tuple[str, Any, Location]] = [
        ("data.train_files", list(recipe.data.train), ("data", "train")),
        ("data.val_files", list(recipe.data.val), ("data", "val")),
        ("actor_rollout_ref.model.path", recipe.model.path, ("model", "path")),
        *_sizes(recipe),
        ("trainer.project_name", recipe.name, ("name",)),
        ("trainer.experiment_name", run_dir.name, ("name",)),
        ("trainer.default_local_dir", str(run_dir / "checkpoints"), ("name",)),
        *((path, recipe.seed, ("seed",)) for path in seeds),
    ]
    if recipe.critic is not None:
        values.append(("critic.model.path", recipe.critic.path, ("critic", "path")))
    if recipe.reward_model is not None:
        values += [
            ("reward.reward_model.enable", True, ("reward_model",)),
            ("reward.reward_model.model_path", recipe.reward_model.path, ("reward_model", "path")),
        ]
    values += _checkpoints(recipe)
    if recipe.reward is not None:
        values += [
            ("reward.custom_reward_function.path", str(recipe.reward_file), ("reward", "file")),
            ("reward.custom_reward_function.name", recipe.reward.function, ("reward", "function")),
        ]
    return [
        Override(key, value, recipe.document.where(location), forced=True) for key, value, location in values
    ]


def _checkpoints(recipe: Recipe) -> list[tuple[str, Any, Location]]:
    """Where verl's Megatron engine loads converted weights from."""
    values: list[tuple[str, Any, Location]] = []
    for index, one in enumerate(recipe.conversion):
        for role in one.roles:
            prefix = MEGATRON[role]
            values += [
                (f"{prefix}.use_dist_checkpointing", True, ("conversion", index, "roles")),
                (f"{prefix}.dist_checkpointing_path", one.output, ("conversion", index, "output")),
            ]
    return values


def _sizes(recipe: Recipe) -> list[tuple[str, Any, Location]]:
    """Hosts and devices of verl's resource pools: one for all roles, or one each for trainer and rollout."""
    if recipe.pools is None:
        cluster = recipe.cluster
        return [
            ("trainer.nnodes", cluster.nodes, ("cluster", "nodes")),
            ("trainer.n_gpus_per_node", cluster.devices_per_node, ("cluster", "devices_per_node")),
        ]
    prefixes = {
        "trainer": "trainer",
        "rollout": "actor_rollout_ref.rollout",
        "reward": "reward.reward_model",
    }
    sizes: list[tuple[str, Any, Location]] = [
        (f"{prefixes[pool]}.{key}", getattr(getattr(recipe.pools, pool), name), ("pools", pool, name))
        for pool in recipe.pools.model_dump(exclude_none=True)
        for key, name in (("nnodes", "nodes"), ("n_gpus_per_node", "devices_per_node"))
    ]
    if recipe.pools.reward is not None:
        sizes.append(("reward.reward_model.enable_resource_pool", True, ("pools", "reward")))
    return sizes


def _refuse_owned(written: Sequence[Override], derived: Sequence[Override]) -> None:
    owned = {override.path: override for override in derived}
    for override in written:
        owner = owned.get(override.path)
        if owner is not None:
            raise RecipeError(
                f"{override.path} is decided by recipe.yaml",
                where=override.origin,
                found=f"{override.key}: {describe(override.value)}",
                expected=f"the value that {owner.origin} gives: {describe(owner.value)}",
                fix=f"remove the line and change {owner.origin}; for one run use --set {override.path}=…",
            )


def _runtime_env(recipe: Recipe, variables: Variables) -> dict[str, Any]:
    """Ray's runtime_env, with the variables of the variants; an empty one where the recipe has no such file."""
    path = recipe.folder / RUNTIME_ENV_FILE
    value: dict[str, Any] = _read_runtime_env(path, variables) if path.is_file() else {}
    for one in recipe.layers:
        if one.variant.env_vars:
            laid = part(one, ("env_vars",), variables)
            _check_env_vars(laid.value, laid, ())
            value = {**value, "env_vars": {**value.get("env_vars", {}), **laid.value}}
    return value


def _read_runtime_env(path: Path, variables: Variables) -> dict[str, Any]:
    document = read_document(path)
    value = variables.substitute({} if document.value is None else document.value, document.where)
    if not isinstance(value, dict):
        raise RecipeError(
            "runtime_env.yaml must hold a mapping",
            where=document.where(),
            found=describe(value),
            expected="for example 'env_vars: {OMP_NUM_THREADS: \"1\"}'",
            fix="see Ray's documentation of runtime_env",
        )
    variables_set = value.get("env_vars")
    if variables_set is not None:
        _check_env_vars(variables_set, document, ("env_vars",))
    return value


def _check_env_vars(variables_set: Any, document: Document, root: Location) -> None:
    if not isinstance(variables_set, Mapping):
        raise RecipeError(
            "env_vars must be a mapping",
            where=document.where(root),
            found=describe(variables_set),
            expected='NAME: "value" lines',
            fix="write one variable a line",
        )
    for name, value in variables_set.items():
        where = document.where((*root, name))
        if not isinstance(value, str):
            raise RecipeError(
                f"environment variable {name} must be text",
                where=where,
                found=describe(value),
                expected="text in quotes: Ray takes nothing else",
                fix=f'write {name}: "{"" if value is None else str(value).lower() if isinstance(value, bool) else value}"',
            )
        if name in PROTECTED_VARIABLES:
            raise RecipeError(
                f"environment variable {name} is set by the run itself",
                where=where,
                found=f"{name}: {value!r}",
                expected=f"a recipe without {', '.join(PROTECTED_VARIABLES)}",
                fix="remove the line",
            )


def portable(resolved: Resolved) -> dict[str, Any]:
    """``resolved.config`` with the folders of this machine and this run named symbolically.

    The same on every machine, so that it can be kept as a golden file and read in a diff.
    """
    names = {str(resolved.run_dir): "<run.dir>", str(resolved.recipe.folder): "<recipe.dir>"}
    if resolved.assets_dir is not None:
        names[str(resolved.assets_dir)] = "<assets.dir>"
    swapped: dict[str, Any] = _swap(resolved.config, names)
    swapped["trainer"]["experiment_name"] = "<run.id>"
    return swapped


def _swap(value: Any, names: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _swap(item, names) for key, item in value.items()}
    if isinstance(value, list):
        return [_swap(item, names) for item in value]
    if isinstance(value, str):
        for folder in sorted(names, key=len, reverse=True):
            if value == folder or value.startswith(f"{folder}/"):
                return names[folder] + value[len(folder) :]
    return value
