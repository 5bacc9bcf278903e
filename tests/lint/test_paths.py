from __future__ import annotations

import pytest

from verl_musa.lint.paths import inside, judge


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("/mnt/data/train.parquet", "path.machine"),
        ("/mnt/", "path.machine"),
        ("file:///nfs/ckpt", "path.machine"),
        ("/root/x", "path.machine"),
        ("/workspace/verl/data", "path.machine"),
        ("/data/a/b", "path.machine"),
        ("/data/train.parquet", "path.machine"),
        ("/home/ubuntu/x", "path.machine"),
        ("/home/…/x", "path.machine"),
        ("/home/alice", "path.user"),
        ("/Users/alice/x", "path.user"),
        ("/mnt/nfs/home/alice/x", "path.user"),
        ("/data/users/alice/x", "path.user"),
        ("~alice/x", "path.user"),
        ("~/data", "path.home"),
    ],
)
def test_faults(text: str, rule: str) -> None:
    hit = judge(text)
    assert hit is not None
    assert hit.rule.id == rule


@pytest.mark.parametrize(
    "text",
    [
        "",
        "/",
        "~",
        "~/",
        "~/.cache/x",
        "~/…",
        "/tmp/x",  # noqa: S108
        "/dev/shm/x",  # noqa: S108
        "/usr/bin/env",
        "/opt/musa/lib",
        "/data",
        "/data/train",
        "/data/v1/items",
        "/generate",
        "/v1/chat/completions",
        "/path/to/model",
        "/mnt/your_data/x",
        "/home/<user>/x",
        "…/mnt/x",
        "//mnt/x",
        "mnt/x",
        "/mnt/a b",
        "^/mnt/.*",
        "/api/users/list/all",
        "/$HOME",
        "/mnt/a:/usr/b",
    ],
)
def test_no_faults(text: str) -> None:
    assert judge(text) is None


def test_unknown_roots_count_where_the_place_says_that_it_is_a_path() -> None:
    assert judge("/oss/qwen3") is None
    assert judge("/oss/qwen3", used_as_path=True) is not None
    assert judge("/oss", used_as_path=True) is None
    assert judge("/oss/v1", used_as_path=True) is None
    assert judge("/data/train", used_as_path=True) is not None


def test_made_up_paths_of_unit_tests() -> None:
    assert judge("/models/x", used_as_path=True, only_known_roots=True) is None
    assert judge("/mnt/x", used_as_path=True, only_known_roots=True) is not None


@pytest.mark.parametrize("text", ["/root/x", "/workspace/x", "/data/a/b", "~/x"])
def test_an_images_own_folders(text: str) -> None:
    assert judge(text, in_image=True) is None
    assert judge(text) is not None


def test_inside_a_line() -> None:
    line = "export A=/mnt/a:/nfs/b && ray start '--x=/home/alice/c' https://host/mnt/d a/mnt/e -v ~/f:/usr/g"
    found = [(hit.rule.id, hit.path) for hit in inside(line)]
    assert found == [
        ("path.machine", "/mnt/a"),
        ("path.machine", "/nfs/b"),
        ("path.user", "/home/alice/c"),
        ("path.home", "~/f"),
    ]
