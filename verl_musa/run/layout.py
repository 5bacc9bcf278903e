"""Which hosts a run is laid out on, and what of the recipe follows from that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from verl_musa.cluster.hosts import Host, chosen, devices_of, hosts_of
from verl_musa.errors import HostError
from verl_musa.recipe import Recipe, Resolved, Site, resolve, sized
from verl_musa.recipe.network import INTERFACE
from verl_musa.run import RunOptions
from verl_musa.run.record import ClusterFacts

DEFAULT_RUNS = Path("runs")
SIMULATED = "MUSA_SIM_DEVICES"
"""Devices that the simulator shows on a host (ci/musa_sim)."""


@dataclass(frozen=True)
class Layout:
    """The hosts of a run on several hosts.

    Attributes:
        site: the site.
        shared: the folder that all of them see.
        runs_dir: where run directories are made, below it.
        hosts: those that the run uses, the head first.
        spares: further ones, for a retry.
        devices: of each host.
    """

    site: Site
    shared: Path
    runs_dir: Path
    hosts: tuple[Host, ...]
    spares: tuple[Host, ...]
    devices: int

    @property
    def cache(self) -> Path:
        """Where assets are made: every host reads them."""
        return self.shared / ".verl-musa" / "cache"

    @property
    def everybody(self) -> tuple[Host, ...]:
        """Hosts and spares."""
        return (*self.hosts, *self.spares)

    def facts(self, retries: int) -> ClusterFacts:
        """What the run's record keeps of it."""
        return ClusterFacts(
            nodes=len(self.hosts),
            devices_per_node=self.devices,
            hosts=[_text(host) for host in self.everybody],
            head=self.hosts[0].name,
            site=str(self.site.source or ""),
            shared=str(self.shared),
            retries=retries,
        )

    def on(self, hosts: Sequence[Host]) -> Layout:
        """The same on other hosts out of all that there are; the others are spares."""
        names = {host.name for host in hosts}
        return replace(
            self, hosts=tuple(hosts), spares=tuple(h for h in self.everybody if h.name not in names)
        )

    def resolve(
        self, recipe: Recipe, run_dir: Path, sets: Sequence[str], *, without_site: bool = False
    ) -> Resolved:
        """The recipe as this layout runs it.

        The interface of the gradients' network is a fact of the host: where the recipe's network block does not name one, a
        ``GLOO_SOCKET_IFNAME`` of its runtime_env.yaml (written for one host) gives way to what each host's Ray sets for itself. A
        simulator shows as many devices as each host hands out. ``without_site``: as for :func:`verl_musa.recipe.resolve`.

        Raises:
            RecipeError: a mistake in the recipe.
        """
        placed = sized(recipe, nodes=len(self.hosts), devices_per_node=self.devices)
        resolved = resolve(
            placed, run_dir=run_dir, site=self.site, sets=sets, cache=self.cache, without_site=without_site
        )
        variables = dict(resolved.runtime_env.get("env_vars", {}))
        if recipe.network is None or recipe.network.interface is None:
            variables = {name: text for name, text in variables.items() if name not in INTERFACE}
        if recipe.device.simulated:
            variables[SIMULATED] = str(self.devices)
        runtime_env = {**resolved.runtime_env, "env_vars": variables}
        return replace(resolved, runtime_env=runtime_env, interface_by_host=True)

    def as_written(self, recipe: Recipe, run_dir: Path, sets: Sequence[str]) -> Resolved:
        """The recipe in its own size, which is what its lock holds."""
        return resolve(recipe, run_dir=run_dir, site=self.site, sets=sets, cache=self.cache)


def _text(host: Host) -> str:
    return f"{host.name} slots={host.slots}" if host.slots is not None else host.name


def lay_out(options: RunOptions, recipe: Recipe, site: Site, before: ClusterFacts | None = None) -> Layout:
    """Choose the hosts: those of ``--hosts``, of the run that is resumed (``before``), or of the site.

    Raises:
        HostError: no hosts, too few of them, no shared folder, or a runs folder that the hosts do not share.
    """
    named, head = list(options.hosts), options.head
    if before is not None:
        named = named or list(before.hosts)
        if head is None and before.head in [text.split()[0] for text in named]:
            head = before.head
    hosts = hosts_of(site, _known_texts(named, site), head=head)
    if before is not None:
        nodes: int | None = before.nodes
    else:
        nodes = options.nodes or (None if options.hosts else max(recipe.cluster.nodes, 1))
    some, spares = chosen(hosts, nodes)
    asked = before.devices_per_node if before is not None else options.devices_per_node
    shared = shared_folder(site)
    return Layout(
        site=site,
        shared=shared,
        runs_dir=_runs_dir(options.runs_dir, shared, site),
        hosts=some,
        spares=spares,
        devices=devices_of(some, asked, recipe.cluster.devices_per_node),
    )


def _known_texts(named: Sequence[str], site: Site) -> list[str]:
    """Names alone, where the site knows the hosts: it says their slots itself."""
    return [text.split()[0] for text in named] if site.hosts or site.hostfile else list(named)


def shared_folder(site: Site) -> Path:
    """The site's shared folder.

    Raises:
        HostError: it has none, or it is not here.
    """
    where = str(site.source or "site.yaml")
    if site.shared is None or not Path(site.shared).is_dir():
        raise HostError(
            "the site has no shared folder"
            if site.shared is None
            else "the shared folder of the site is not here",
            where=where,
            found=site.shared or "no `shared`",
            expected="a folder that this machine and every host see under the same absolute path",
            fix="correct `shared` in site.yaml, or mount it",
        )
    return Path(site.shared)


def _runs_dir(asked: Path, shared: Path, site: Site) -> Path:
    folder = shared / "runs" if asked == DEFAULT_RUNS else asked.absolute()
    if not folder.resolve().is_relative_to(shared.resolve()):
        raise HostError(
            "the hosts would not see the run directory",
            where=str(folder),
            found=f"not below {shared}",
            expected=f"a folder below {shared}, the shared folder of {site.source or 'site.yaml'}",
            fix="leave --runs-dir out, or name a folder there",
        )
    return folder


def wants_several(options: RunOptions, recipe: Recipe) -> bool:
    """Whether a new run goes over ssh to the hosts of the site, rather than on this one."""
    return recipe.cluster.nodes > 1 or bool(options.hosts) or options.nodes is not None
