from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from verl_musa.errors import RecipeError
from verl_musa.recipe import Resolved, Site, load_recipe, resolve

MakeRecipe = Callable[..., Path]
ROCE = 'network: {profile: roce, interface: "${site.training_interface}", gid_index: 3, timeout: 20, retries: 7}\n'


def resolved(folder: Path, site: Site | None = None, *, without_site: bool = False) -> Resolved:
    return resolve(
        load_recipe(str(folder)), run_dir=Path("/runs/r1"), site=site or Site(), without_site=without_site
    )


def test_roce_sets_its_variables(make_recipe: MakeRecipe) -> None:
    folder = make_recipe(extra=ROCE, runtime_env="env_vars: {A: 'x'}\n")
    found = resolved(folder, Site(values={"training_interface": "bond7"})).runtime_env["env_vars"]
    assert found == {
        "A": "x",
        "MCCL_SOCKET_IFNAME": "bond7",
        "GLOO_SOCKET_IFNAME": "bond7",
        "MCCL_IB_GID_INDEX": "3",
        "MCCL_IB_TIMEOUT": "20",
        "MCCL_IB_RETRY_CNT": "7",
    }


def test_a_name_that_the_site_does_not_set_is_noted(make_recipe: MakeRecipe) -> None:
    folder = make_recipe(extra=ROCE)
    found = resolved(folder, without_site=True)
    assert found.missing_site == {"training_interface": f"{folder}/recipe.yaml:12"}
    assert found.runtime_env["env_vars"]["MCCL_SOCKET_IFNAME"] == "<site.training_interface>"
    with pytest.raises(RecipeError, match="training_interface"):
        resolved(folder)


def test_a_variable_that_is_set_twice_names_both_places(make_recipe: MakeRecipe) -> None:
    folder = make_recipe(extra=ROCE, runtime_env="env_vars: {GLOO_SOCKET_IFNAME: lo}\n")
    with pytest.raises(RecipeError) as error:
        resolved(folder, without_site=True)
    assert "decided by the network block" in str(error.value)
    assert f"{folder}/recipe.yaml:12" in str(error.value)


@pytest.mark.parametrize(
    ("block", "says"),
    [
        ("{profile: roce}", "both need it"),
        ("{profile: single, interface: eth0}", "both need it"),
        ("{profile: tcp, interface: eth0, gid_index: 3}", "belong to the profile roce"),
    ],
)
def test_fields_fit_the_profile(make_recipe: MakeRecipe, block: str, says: str) -> None:
    with pytest.raises(RecipeError, match=says):
        load_recipe(str(make_recipe(extra=f"network: {block}\n")))


def test_a_path_under_the_site_stays_as_it_is(make_recipe: MakeRecipe) -> None:
    folder = make_recipe(replace=(("${recipe.dir}/model", "${site.models}/x"),))
    found = resolved(folder, without_site=True)
    assert found.recipe.model.path == "<site.models>/x"
    assert found.config["actor_rollout_ref"]["model"]["path"] == "<site.models>/x"
