from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf

from verl_musa.errors import HostError, RecipeError, VerlMusaError
from verl_musa.recipe.compose import compose, config_dir, dump_config
from verl_musa.recipe.overrides import Override

TREE = {
    "main.yaml": """\
defaults: [{part@piece: one}, _self_]
size: 256
ratio: 0
name: text
flag: true
files: single
many: [a]
empty: {}
open: null
must: ???
tied: ${size}
loose: ${oc.select:nowhere.at_all,null}
nested: {a: 1, b: {c: x}}
""",
    "part/one.yaml": "kind: one\nspeed: 3\n",
    "part/two.yaml": "kind: two\nother: 4\n",
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, text in TREE.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def run(tree: Path, *pairs: tuple[str, Any]) -> dict[str, Any]:
    return compose(
        tree, "main", [Override(key, value, f"config.yaml:{n}") for n, (key, value) in enumerate(pairs, 1)]
    )


def test_values_arrive_as_they_are(tree: Path) -> None:
    config = run(
        tree,
        ("size", 8),
        ("ratio", 0.25),
        ("name", "null"),
        ("flag", False),
        ("files", ["a", "b"]),
        ("open", {"x": "1e-6"}),
        ("+nested.new", 1e-6),
        ("+empty", {"k": 1}),
        ("nested", {"a": 2}),
        ("tied", 3),
        ("must", "set"),
    )
    assert config == {
        "piece": {"kind": "one", "speed": 3},
        "size": 8,
        "ratio": 0.25,
        "name": "null",
        "flag": False,
        "files": ["a", "b"],
        "many": ["a"],
        "empty": {"k": 1},
        "open": {"x": "1e-6"},
        "must": "set",
        "tied": 3,
        "loose": "${oc.select:nowhere.at_all,null}",
        "nested": {"a": 2, "b": {"c": "x"}, "new": 1e-6},
    }


def test_interpolations_and_open_values_are_kept(tree: Path) -> None:
    config = run(tree, ("name", "${piece.kind}-x"))
    assert (config["tied"], config["name"], config["must"]) == ("${size}", "${piece.kind}-x", "???")


def test_group_options(tree: Path) -> None:
    assert run(tree, ("part@piece", "two"), ("piece.other", 5))["piece"] == {"kind": "two", "other": 5}


@pytest.mark.parametrize(
    ("pair", "message", "expected"),
    [
        (("sise", 1), "no key 'sise'", "did you mean size?"),
        (("nested.zz", 1), "no key 'nested.zz'", "a key of verl's config"),
        (("nested", {"zz": 1}), "no key 'nested.zz'", "one of a, b"),
        (("empty", {"zz": 1}), "no key 'empty.zz'", "mapping is empty"),
        (("+size", 1), "has 'size' already", "without the '+'"),
        (("size", "abc"), "wrong type for 'size'", "an integer"),
        (("size", "8"), "wrong type for 'size'", "an integer"),
        (("size", 1.5), "wrong type for 'size'", "an integer"),
        (("size", True), "wrong type for 'size'", "an integer"),
        (("size", {"a": 1}), "wrong type for 'size'", "an integer"),
        (("size", [1]), "wrong type for 'size'", "an integer"),
        (("ratio", "x"), "wrong type for 'ratio'", "a number"),
        (("name", 3), "wrong type for 'name'", "text"),
        (("name", {"a": 1}), "wrong type for 'name'", "text"),
        (("flag", "no"), "wrong type for 'flag'", "true or false"),
        (("flag", 1), "wrong type for 'flag'", "true or false"),
        (("many", 3), "wrong type for 'many'", "a list"),
        (("nested", 3), "wrong type for 'nested'", "a mapping with keys a, b"),
        (("nested", {"b": {"c": 1}}), "wrong type for 'nested.b.c'", "text"),
        (("tied", "x"), "wrong type for 'tied'", "an integer"),
        (("~zz", None), "no key 'zz'", "a key of verl's config"),
        (("part@piece", "three"), "config group 'part@piece'", "one two"),
        (("name", "${nope.x}"), "refers to a key that does not exist", "nope"),
        (("+new", ["${nope.x}"]), "refers to a key that does not exist", "nope"),
    ],
)
def test_mistakes(pair: tuple[str, Any], message: str, expected: str, tree: Path) -> None:
    with pytest.raises(RecipeError) as caught:
        run(tree, ("open", 1), pair)
    assert message in caught.value.message
    assert expected in str(caught.value.expected)
    assert caught.value.where == "config.yaml:2"
    assert caught.value.fix


@pytest.mark.parametrize(
    ("pair", "value"),
    [
        (("++size", "abc"), "abc"),
        (("size", None), None),
        (("size", "${ratio}"), "${ratio}"),
        (("loose", [1]), [1]),
        (("open", 1.5), 1.5),
        (("name", "${oc.env:NO_SUCH_VARIABLE_HERE}"), "${oc.env:NO_SUCH_VARIABLE_HERE}"),
    ],
)
def test_what_is_let_through(pair: tuple[str, Any], value: Any, tree: Path) -> None:
    assert run(tree, pair)[pair[0].lstrip("+")] == value


def test_deletion(tree: Path) -> None:
    assert "name" not in run(tree, ("~name", None))


def test_unknown_config_name_lists_the_choices(tree: Path) -> None:
    with pytest.raises(RecipeError, match="does not exist") as caught:
        compose(tree, "nope", [])
    assert caught.value.expected == "one of main"


def test_config_dir_of_verl() -> None:
    folder = config_dir("verl.trainer.main_ppo")
    assert (folder / "ppo_trainer.yaml").is_file()


@pytest.mark.parametrize(
    ("module", "kind"), [("no_such_package.main", HostError), ("verl.no_such.main", RecipeError)]
)
def test_config_dir_missing(module: str, kind: type[VerlMusaError]) -> None:
    with pytest.raises(kind):
        config_dir(module)


def test_dump_survives_hydras_reading(tree: Path) -> None:
    config = run(
        tree, ("name", "1e-6"), ("files", ["null", "true", "007", "a: b", "${size}"]), ("open", 1e-6)
    )
    text = dump_config(config)
    again = OmegaConf.to_container(OmegaConf.create(text), resolve=False)
    assert again == config
    plain = OmegaConf.to_container(OmegaConf.create(yaml.safe_dump(config)), resolve=False)
    assert plain != config, "plain PyYAML is enough now; dump_config can go"


def test_a_dumped_config_is_a_config_of_its_own(tree: Path, tmp_path: Path) -> None:
    config = run(tree, ("name", "a'b: ${size}"), ("open", {"x": "007", "y": None}), ("ratio", 1e-6))
    (tmp_path / "run").mkdir()
    (tmp_path / "run/config.yaml").write_text(dump_config(config), encoding="utf-8")
    assert compose(tmp_path / "run", "config", []) == config


def test_composing_verl_imports_neither_verl_nor_torch_and_survives_a_dump(tmp_path: Path) -> None:
    code = (
        "import sys; from verl_musa.recipe.compose import compose, config_dir; "
        "config = compose(config_dir('verl.trainer.main_ppo'), 'ppo_trainer', []); "
        "assert config['trainer']['nnodes'] == 1; "
        "import pathlib, tempfile; from verl_musa.recipe.compose import dump_config; "
        "folder = pathlib.Path(tempfile.mkdtemp(dir=sys.argv[1])); "
        "(folder / 'config.yaml').write_text(dump_config(config)); "
        "assert compose(folder, 'config', []) == config; "
        "heavy = {'verl', 'torch', 'ray', 'transformers', 'sglang'} & set(sys.modules); "
        "assert not heavy, heavy"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
