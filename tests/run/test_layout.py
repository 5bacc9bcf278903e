from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from verl_musa.errors import HostError, RecipeError
from verl_musa.recipe import Site, load_recipe, sized
from verl_musa.recipe.site import HostEntry
from verl_musa.run import RunOptions
from verl_musa.run.layout import Layout, lay_out, wants_several
from verl_musa.run.record import ClusterFacts

RECIPES = Path(__file__).parents[2] / "recipes"
TINY = load_recipe(str(RECIPES / "qwen3-tiny-dense"))


def site(tmp_path: Path, *names: str, **changes: Any) -> Site:
    values: dict[str, Any] = {"shared": str(tmp_path), "head": names[0] if names else None, **changes}
    return Site(hosts=tuple(HostEntry(name=name) for name in names), **values)


def options(**changes: Any) -> RunOptions:
    return RunOptions(recipe="qwen3-tiny-dense", **changes)


def laid_out(tmp_path: Path, **changes: Any) -> Layout:
    return lay_out(options(devices_per_node=1, **changes), TINY, site(tmp_path, "a", "b", "c", "d"))


def test_hosts_that_are_named_are_all_used(tmp_path: Path) -> None:
    found = laid_out(tmp_path, hosts=("a", "b", "c"))
    assert [host.name for host in found.hosts] == ["a", "b", "c"]
    assert (found.spares, found.devices) == ((), 1)
    assert found.runs_dir == tmp_path / "runs"


def test_hosts_beyond_the_number_are_spares(tmp_path: Path) -> None:
    found = laid_out(tmp_path, nodes=3)
    assert [host.name for host in found.spares] == ["d"]
    moved = found.on([found.hosts[0], *found.spares, found.hosts[1]])
    assert [host.name for host in moved.hosts] == ["a", "d", "b"]
    assert [host.name for host in moved.spares] == ["c"]


def test_the_sizes_of_verl_and_of_the_simulator_follow(tmp_path: Path) -> None:
    resolved = laid_out(tmp_path, hosts=("a", "b", "c", "d")).resolve(TINY, tmp_path / "runs" / "r", [])
    trainer = resolved.config["trainer"]
    assert (trainer["nnodes"], trainer["n_gpus_per_node"]) == (4, 1)
    assert resolved.recipe.cluster.host_memory_gib == TINY.cluster.host_memory_gib / 2
    variables = resolved.runtime_env["env_vars"]
    assert variables["MUSA_SIM_DEVICES"] == "1"
    assert "GLOO_SOCKET_IFNAME" not in variables  # each host's Ray sets its own
    assert resolved.assets_dir is not None
    assert resolved.assets_dir.is_relative_to(tmp_path)


def test_an_interface_that_the_recipe_names_stays(tmp_path: Path) -> None:
    recipe = load_recipe(str(RECIPES / "qwen3-8b-dense"))
    values = {"models": "/m", "training_interface": "bond7", "gsm8k": "/g"}
    place = site(tmp_path, "a", "b", "c", "d", values=values)
    resolved = lay_out(RunOptions(recipe="x"), recipe, place).resolve(recipe, tmp_path / "r", [])
    assert resolved.runtime_env["env_vars"]["GLOO_SOCKET_IFNAME"] == "bond7"


def test_a_resumed_run_keeps_its_sizes_and_hosts(tmp_path: Path) -> None:
    before = ClusterFacts(
        nodes=2, devices_per_node=1, hosts=["b", "a slots=4", "c"], head="b", site="", shared="s"
    )
    found = lay_out(options(), TINY, site(tmp_path, "a", "b", "c", "d"), before)
    assert [host.name for host in found.everybody] == ["b", "a", "c"]
    assert (len(found.hosts), found.devices) == (2, 1)
    other = lay_out(options(hosts=("b", "d")), TINY, site(tmp_path, "a", "b", "c", "d"), before)
    assert [host.name for host in other.hosts] == ["b", "d"]
    assert found.facts(3).retries == 3


def test_hosts_of_no_site_keep_their_slots_through_a_resume(tmp_path: Path) -> None:
    place = Site(shared=str(tmp_path), head="x")
    found = lay_out(options(hosts=("x slots=2", "y slots=2")), TINY, place)
    assert found.devices == 2
    again = lay_out(options(), TINY, place, found.facts(0))
    assert again.hosts == found.hosts


def test_a_runs_folder_that_the_hosts_do_not_see_is_refused(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    place = site(tmp_path / "shared", "a", "b")
    with pytest.raises(HostError, match="would not see the run directory"):
        lay_out(options(runs_dir=tmp_path / "elsewhere"), TINY, place)
    link = tmp_path / "shared" / "link"
    link.symlink_to(tmp_path)
    with pytest.raises(HostError, match="would not see the run directory"):
        lay_out(options(runs_dir=link), TINY, place)
    assert lay_out(options(runs_dir=tmp_path / "shared" / "mine"), TINY, place).runs_dir.name == "mine"


@pytest.mark.parametrize("shared", [None, "/no/such/folder"])
def test_a_shared_folder_is_needed(tmp_path: Path, shared: str | None) -> None:
    with pytest.raises(HostError, match="shared folder"):
        lay_out(options(), TINY, site(tmp_path, "a", "b", shared=shared))


@pytest.mark.parametrize("name", ["-oProxyCommand=x", "a;b", "a\nb", "$(id)", "../x", "ä"])
def test_hostile_names_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(HostError, match="not a host"):
        lay_out(options(hosts=("a", name)), TINY, Site(shared=str(tmp_path), head="a"))


def test_pools_are_not_put_on_other_hosts() -> None:
    split = load_recipe(str(RECIPES / "qwen3-tiny-dense"), variants=("split",))
    assert split.pools is not None
    with pytest.raises(RecipeError, match="divides its devices among pools"):
        sized(split, nodes=4, devices_per_node=1)
    assert sized(split, nodes=split.cluster.nodes, devices_per_node=split.cluster.devices_per_node) is split


def test_what_makes_a_run_one_on_several_hosts() -> None:
    assert not wants_several(options(), TINY)
    assert wants_several(options(nodes=2), TINY)
    assert wants_several(options(hosts=("a",)), TINY)
    assert wants_several(options(), load_recipe(str(RECIPES / "qwen3-8b-dense")))
