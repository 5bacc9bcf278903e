"""Checks of the policy's folder, and what they share with those of the critic and the reward model (scorers)."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

from verl_musa.checks import Check, Finding, fail, ok, unknown, warn
from verl_musa.data.subject import Subject

_PATH = "actor_rollout_ref.model.path"
_INDEX = "model.safetensors.index.json"
_MAX_HEADER = 100 * 2**20  # the limit of the safetensors format itself


def check_folder(subject: Subject) -> Finding:
    """The folder exists and holds a readable ``config.json``."""
    return folder_finding(subject, subject.model_path, subject.where(_PATH), "model.path")


def folder_finding(subject: Subject, folder: Path, where: str, field: str) -> Finding:
    """Whether ``folder`` exists and holds a readable ``config.json``; ``field`` of recipe.yaml names it."""
    pending = subject.not_made_yet(folder)
    if pending:
        return pending
    if not folder.is_dir():
        return fail(f"no folder {folder}", f"correct {field} in recipe.yaml, or put the model there", where)
    file = folder / "config.json"
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        return fail(f"cannot read {file}: {error.strerror}", "name a folder in Hugging Face layout", where)
    except ValueError as error:
        return fail(f"{file} is not JSON: {error}", "copy the file again", str(file))
    if not isinstance(value, dict):
        return fail(f"{file} holds no JSON object", "copy the file again", str(file))
    return ok(f"{folder}, model_type {value.get('model_type')!r}")


def check_architecture(subject: Subject) -> Finding:
    """The folder holds the architecture that the recipe is written for."""
    if subject.model_file() is None:
        return subject.not_made_yet(subject.model_path) or unknown(
            "no readable config.json (see model.folder)"
        )
    return architecture_finding(subject.model_path, subject.resolved.recipe.model.architecture, "model")


def architecture_finding(folder: Path, expected: str, field: str) -> Finding:
    """Whether the config.json in ``folder``, which is readable, names ``expected``; ``field`` is recipe.yaml's."""
    file = folder / "config.json"
    found = read_object(file).get("architectures")
    if found != [expected]:
        return fail(
            f"architectures is {found!r}, the recipe is for {expected!r}",
            f"name the right model, or correct {field}.architecture in recipe.yaml",
            str(file),
        )
    return ok(expected)


def check_weights(subject: Subject) -> Finding:
    """Every weight file is there and whole, by its own header."""
    folder = subject.model_path
    if not folder.is_dir():
        return subject.not_made_yet(folder) or unknown("no model folder (see model.folder)")
    return weights_finding(folder)


def weights_finding(folder: Path) -> Finding:
    """Whether every weight file in ``folder`` is there and whole, by its own header."""
    try:
        names = _weight_files(folder)
    except (OSError, ValueError) as error:
        index = folder / _INDEX
        return fail(f"{index.name} cannot be read: {error}", "copy the file again", str(index))
    if not names:
        if any(folder.glob("*.bin")):
            return warn(
                "only .bin weights, which are not looked into", "convert them to safetensors", str(folder)
            )
        return fail("no *.safetensors file", "copy the weights into the folder", str(folder))
    total = 0
    for name in names:
        problem = _safetensors_problem(folder / name)
        if problem:
            return fail(f"{name}: {problem}", "copy the file again", str(folder / name))
        total += (folder / name).stat().st_size
    return ok(f"{len(names)} safetensors file(s), {total / 2**20:.1f} MiB")


def tensor_names(folder: Path) -> set[str]:
    """Names of the tensors in the safetensors files of ``folder``, which weights_finding has found whole."""
    names: set[str] = set()
    for file in _weight_files(folder):
        with (folder / file).open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            names |= json.loads(stream.read(length)).keys() - {"__metadata__"}
    return names


def _weight_files(folder: Path) -> list[str]:
    index = folder / _INDEX
    return sorted(_shards(index) if index.is_file() else (file.name for file in folder.glob("*.safetensors")))


def _shards(index: Path) -> set[str]:
    weight_map = json.loads(index.read_text(encoding="utf-8")).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ValueError("no weight_map in it")
    return {str(name) for name in weight_map.values()}


def _safetensors_problem(file: Path) -> str | None:
    """What is wrong with ``file``; None where its size is what its header says."""
    try:
        with file.open("rb") as stream:
            start = stream.read(8)
            if len(start) < 8:  # noqa: PLR2004  (the length field of the format)
                return "shorter than its own length field"
            (length,) = struct.unpack("<Q", start)
            if length > _MAX_HEADER:
                return "not a safetensors file (absurd header length)"
            header = json.loads(stream.read(length))
    except OSError as error:
        return error.strerror or str(error)
    except ValueError:
        return "its header is not JSON"
    try:
        ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
    except (AttributeError, KeyError, TypeError, IndexError):
        return "its header does not describe tensors"
    expected = 8 + length + max(ends, default=0)
    found = file.stat().st_size
    return None if found == expected else f"{found:,} bytes, its header says {expected:,}"


def check_tokenizer(subject: Subject) -> Finding:
    """There is a tokenizer with a chat template; verl applies the template to every prompt."""
    folder = Path(str(subject.select("actor_rollout_ref.model.tokenizer_path") or subject.model_path))
    if not folder.is_dir():
        return subject.not_made_yet(folder) or unknown(f"no folder {folder} (see model.folder)")
    custom = "actor_rollout_ref.model.custom_chat_template"
    return tokenizer_finding(folder, custom if subject.select(custom) else None)


def tokenizer_finding(folder: Path, template: str | None) -> Finding:
    """Whether ``folder`` holds a tokenizer, and a chat template unless ``template`` says where there is another."""
    kinds = (("tokenizer.json",), ("tokenizer.model",), ("vocab.json", "merges.txt"))
    kind = next((names for names in kinds if all((folder / name).is_file() for name in names)), None)
    if kind is None:
        return fail(
            "no tokenizer.json, tokenizer.model, or vocab.json with merges.txt",
            "copy the tokenizer's files into the folder",
            str(folder),
        )
    template = template or _chat_template(folder)
    if template is None:
        return fail(
            "no chat template in tokenizer_config.json and no chat_template.jinja",
            "add chat_template.jinja, or set actor_rollout_ref.model.custom_chat_template",
            str(folder),
        )
    return ok(f"{' + '.join(kind)}, chat template from {template}")


def _chat_template(folder: Path) -> str | None:
    if (folder / "chat_template.jinja").is_file():
        return "chat_template.jinja"
    for name in ("tokenizer_config.json", "chat_template.json"):
        if read_object(folder / name).get("chat_template"):
            return name
    return None


def read_object(file: Path) -> dict[str, Any]:
    """The JSON object in ``file``; empty where there is none."""
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def check_vocabulary(subject: Subject) -> Finding:
    """No token id lies outside the embedding; an index error on a device is hard to trace."""
    file = subject.model_path / "tokenizer.json"
    config = subject.model_file()
    if config is None or not file.is_file():
        return subject.not_made_yet(subject.model_path) or unknown(
            "no config.json or no tokenizer.json to compare"
        )
    size = config.get("vocab_size")
    tokenizer = read_object(file)
    try:
        vocabulary = tokenizer["model"]["vocab"]
        ids = list(vocabulary.values()) if isinstance(vocabulary, dict) else list(range(len(vocabulary)))
        ids += [token["id"] for token in tokenizer.get("added_tokens", [])]
        highest = max(ids)
    except (KeyError, TypeError, ValueError, AttributeError):
        return unknown("tokenizer.json has another layout than expected")
    if not isinstance(size, int):
        return unknown("config.json names no vocab_size")
    if highest >= size:
        return fail(
            f"token id {highest} is outside the model's {size} embeddings",
            "use the tokenizer that belongs to the model",
            str(file),
        )
    return ok(f"highest token id {highest}, {size} embeddings")


CHECKS = (
    Check("model.folder", "the model folder and its config.json", check_folder),
    Check("model.architecture", "architectures in config.json against the recipe", check_architecture),
    Check("model.weights", "the safetensors files", check_weights),
    Check("model.tokenizer", "the tokenizer's files and chat template", check_tokenizer),
    Check("model.vocabulary", "token ids against the size of the embedding", check_vocabulary),
)
