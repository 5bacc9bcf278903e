from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from verl_musa.errors import RecipeError
from verl_musa.recipe import Site, default_roots, list_recipes, load_recipe, load_site

MakeRecipe = Callable[..., Path]


def test_load(make_recipe: MakeRecipe) -> None:
    folder = make_recipe()
    recipe = load_recipe("tiny", roots=[folder.parent])
    assert (recipe.name, recipe.seed, recipe.cluster.devices_per_node) == ("tiny", 17, 2)
    assert recipe.folder == folder
    assert recipe.reward_file == folder / "reward.py"
    assert recipe.assets_script is None
    assert recipe.trainer.module == "verl.trainer.main_ppo"
    assert recipe.document.where(("seed",)) == f"{folder / 'recipe.yaml'}:11"


def test_unique_prefix_and_path(make_recipe: MakeRecipe) -> None:
    folder = make_recipe()
    assert load_recipe("ti", roots=[folder.parent]).name == "tiny"
    assert load_recipe(str(folder), roots=[]).name == "tiny"
    assert load_recipe(str(folder / "recipe.yaml"), roots=[]).name == "tiny"


def test_ambiguous_prefix_lists_candidates(make_recipe: MakeRecipe) -> None:
    folder = make_recipe(name="tiny-a")
    make_recipe(name="tiny-b")
    with pytest.raises(RecipeError, match="fits several") as caught:
        load_recipe("tiny", roots=[folder.parent])
    assert caught.value.found == "tiny-a, tiny-b"


def test_exact_name_wins_over_prefix(make_recipe: MakeRecipe) -> None:
    folder = make_recipe(name="tiny")
    make_recipe(name="tiny-b")
    assert load_recipe("tiny", roots=[folder.parent]).name == "tiny"


def test_unknown_name_suggests(make_recipe: MakeRecipe) -> None:
    folder = make_recipe()
    with pytest.raises(RecipeError, match="no recipe 'tinny'") as caught:
        load_recipe("tinny", roots=[folder.parent])
    assert caught.value.fix == "did you mean 'tiny'?"


@pytest.mark.parametrize("name", ["", "x"])
def test_unknown_name(name: str, make_recipe: MakeRecipe) -> None:
    with pytest.raises(RecipeError, match="no recipe"):
        load_recipe(name, roots=[make_recipe().parent])


def test_path_without_recipe(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="no recipe at this path"):
        load_recipe(str(tmp_path / "none"))


@pytest.mark.parametrize(
    ("old", "new", "line", "message", "expected"),
    [
        ("seed: 17", "sead: 17", 11, "unknown key 'sead'", "did you mean 'seed'?"),
        ("nodes: 1", "node: 1", 10, "unknown key 'cluster.node'", "did you mean 'nodes'?"),
        ("nodes: 1, ", "", 10, "'cluster.nodes' is missing", "Number of hosts."),
        ("seed: 17", "seed: '17'", 11, "wrong type for 'seed'", "valid integer"),
        ("seed: 17", "seed: 1.5", 11, "wrong type for 'seed'", "valid integer"),
        ("seed: 17", "seed: -1", 11, "wrong value for 'seed'", "greater than or equal to 0"),
        ("schema: 1", "schema: 2", 1, "wrong value for 'schema'", "input should be 1"),
        ("simulated: true", "simulated: yes", 6, "wrong type for 'device.simulated'", "valid boolean"),
        ("type: musa", "type: cuda", 6, "wrong value for 'device.type'", "'musa'"),
        ("version: 0.1.0", "version: latest", 3, "wrong value for 'version'", "match pattern"),
        (
            "file: reward.py",
            "file: ../reward.py",
            9,
            "wrong value for 'reward.file'",
            "inside the recipe folder",
        ),
        (
            "file: reward.py",
            "file: /etc/passwd",
            9,
            "wrong value for 'reward.file'",
            "inside the recipe folder",
        ),
        ("file: reward.py", "file: none.py", 9, "does not exist", "a file in"),
        ('train: ["${recipe.dir}/train.parquet"]', "train: []", 8, "'data.train'", "at least 1 item"),
        ('train: ["${recipe.dir}/train.parquet"]', "train: [3]", 8, "'data.train.0'", "valid string"),
        ("model: {path", "model: 3 #", 7, "wrong type for 'model'", "valid dictionary"),
        ("name: tiny", "name: other", 2, "differs from its folder's", "'tiny'"),
    ],
)
def test_mistakes(
    *, old: str, new: str, line: int, message: str, expected: str, make_recipe: MakeRecipe
) -> None:
    folder = make_recipe(replace=((old, new),))
    with pytest.raises(RecipeError) as caught:
        load_recipe(str(folder))
    assert caught.value.where == f"{folder / 'recipe.yaml'}:{line}"
    assert message in caught.value.message
    assert expected.lower() in f"{caught.value.expected} {caught.value.fix}".lower()
    assert caught.value.exit_code == 2


def test_several_mistakes_are_all_named(make_recipe: MakeRecipe) -> None:
    folder = make_recipe(replace=(("seed: 17", "seed: x"), ("image: sim", "imagge: sim")))
    with pytest.raises(RecipeError) as caught:
        load_recipe(str(folder))
    text = str(caught.value)
    assert "recipe.yaml:5: unknown key 'imagge'" in text
    assert "recipe.yaml:11: wrong type for 'seed'" in text
    assert "'image' is missing" in text


@pytest.mark.parametrize("content", ["", "[1, 2]", "text"])
def test_not_a_mapping(content: str, make_recipe: MakeRecipe) -> None:
    folder = make_recipe()
    (folder / "recipe.yaml").write_text(content, encoding="utf-8")
    with pytest.raises(RecipeError, match="must hold a mapping"):
        load_recipe(str(folder))


def test_symlink_out_of_the_folder(make_recipe: MakeRecipe, tmp_path: Path) -> None:
    folder = make_recipe()
    outside = tmp_path / "outside.py"
    outside.write_text("", encoding="utf-8")
    (folder / "reward.py").unlink()
    (folder / "reward.py").symlink_to(outside)
    with pytest.raises(RecipeError, match="leaves the recipe folder") as caught:
        load_recipe(str(folder))
    assert str(outside) in str(caught.value.found)


def test_symlink_inside_the_folder(make_recipe: MakeRecipe) -> None:
    folder = make_recipe()
    (folder / "reward.py").rename(folder / "real.py")
    (folder / "reward.py").symlink_to("real.py")
    assert load_recipe(str(folder)).name == "tiny"


def test_assets_script_must_exist(make_recipe: MakeRecipe) -> None:
    folder = make_recipe(extra="assets: {script: make.py, seed: 1}\n")
    with pytest.raises(RecipeError, match=r"assets\.script names a file that does not exist"):
        load_recipe(str(folder))


def test_every_field_is_described() -> None:
    from pydantic import BaseModel

    from verl_musa.recipe import schema

    models = [m for m in vars(schema).values() if isinstance(m, type) and issubclass(m, BaseModel)]
    bare = [f"{m.__name__}.{n}" for m in models for n, f in m.model_fields.items() if not f.description]
    assert len(models) > 8
    assert bare == []


def test_default_roots(make_recipe: MakeRecipe, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = make_recipe()
    deep = tmp_path / "a" / "b"
    deep.mkdir(parents=True)
    monkeypatch.chdir(deep)
    monkeypatch.delenv("VERL_MUSA_RECIPES", raising=False)
    assert default_roots()[0] == folder.parent
    monkeypatch.setenv("VERL_MUSA_RECIPES", f"{tmp_path / 'none'}:{folder.parent}")
    assert list_recipes() == {"tiny": folder}


def test_site(tmp_path: Path) -> None:
    file = tmp_path / "site.yaml"
    file.write_text("schema: 1\nshared: /mnt/shared\nvalues: {models: /mnt/models}\n", encoding="utf-8")
    site = load_site(file)
    assert site.lookup() == {"shared": "/mnt/shared", "models": "/mnt/models"}
    assert site.source == file


def test_site_is_found_upwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "site.yaml").write_text("shared: /x\n", encoding="utf-8")
    deep = tmp_path / "a"
    deep.mkdir()
    monkeypatch.chdir(deep)
    monkeypatch.delenv("VERL_MUSA_SITE", raising=False)
    assert load_site().shared == "/x"
    monkeypatch.setenv("VERL_MUSA_SITE", str(tmp_path / "other.yaml"))
    with pytest.raises(RecipeError, match="cannot read"):
        load_site()


def test_empty_site_file(tmp_path: Path) -> None:
    file = tmp_path / "site.yaml"
    file.write_text("# nothing yet\n", encoding="utf-8")
    assert load_site(file).lookup() == {}
    assert Site().source is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("shard: /x\n", "unknown key 'shard'"),
        ("shared: relative\n", "wrong value for 'shared'"),
        ("values: {shared: /x}\n", "name of a known field"),
        ("values: {a b: x}\n", "values.a b"),
        ("values: {a: 3}\n", "wrong type for 'values.a'"),
    ],
)
def test_site_mistakes(content: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "site.yaml"
    file.write_text(content, encoding="utf-8")
    with pytest.raises(RecipeError) as caught:
        load_site(file)
    assert message in caught.value.message
    assert caught.value.where == f"{file}:1"


def test_shipped_site_example_is_valid() -> None:
    example = Path(__file__).parents[2] / "site.example.yaml"
    assert load_site(example).shared
