"""Hosts of a site, a hostfile and ``--hosts``; texts that are no hosts are refused, whatever they try."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from verl_musa.cluster.hosts import Host, hosts_of, read_hostfile
from verl_musa.errors import HostError, RecipeError
from verl_musa.recipe import Site, load_site

HOSTILE = (
    "node1;rm -rf x",
    "node1 && touch pwned",
    "$(touch pwned)",
    "`touch pwned`",
    "node1|touch pwned",
    "-oProxyCommand=touch pwned",
    "--option",
    "-",
    "root@node1",
    "node1:22",
    "ssh://node1",
    "[fd00::1]",
    "fe80::1%eth0",
    "../../etc/passwd",
    "node/1",
    "n\u043ede1",  # a Cyrillic letter that looks like an o
    "node\u20101",  # a hyphen that is none
    "node1\u200b",  # a space of no width
    "\uff4eode1",  # a full-width letter
    "node1\x00",
    "node1\x1b[31m",
    "node1\u2028node2",
    "*",
    "~",
    "{a,b}",
    "",
    "x" * 300,
)


def _site(tmp_path: Path, text: str) -> Site:
    file = tmp_path / "site.yaml"
    file.write_text(text, encoding="utf-8")
    return load_site(file)


def test_the_head_comes_first_and_the_others_keep_their_order(tmp_path: Path) -> None:
    site = _site(
        tmp_path,
        "hosts:\n  - {name: a}\n  - {name: b, address: 192.0.2.2, training: 198.51.100.2, slots: 8}\n  - {name: c}\nhead: c\n",
    )
    assert hosts_of(site) == (
        Host("c", "c", True),
        Host("a", "a"),
        Host("b", "192.0.2.2", slots=8, training="198.51.100.2"),
    )


def test_names_narrow_the_hosts_of_a_site(tmp_path: Path) -> None:
    site = _site(tmp_path, "hosts: [{name: a}, {name: b, address: 192.0.2.2}, {name: c}]\nhead: a\n")
    assert [host.name for host in hosts_of(site, ["a", "b"])] == ["a", "b"]
    assert hosts_of(site, ["a", "b"])[1].address == "192.0.2.2"
    assert hosts_of(site, ["c"])[0].head, "one host alone is the head"
    with pytest.raises(HostError, match="--hosts names x, which the site does not know"):
        hosts_of(site, ["x"])


def test_the_head_is_never_guessed(tmp_path: Path) -> None:
    site = _site(tmp_path, "hosts: [{name: a}, {name: b}]\n")
    with pytest.raises(HostError, match="the head is not named") as caught:
        hosts_of(site)
    assert "--head a" in str(caught.value)
    assert [host.name for host in hosts_of(site, head="b")] == ["b", "a"]
    with pytest.raises(HostError, match="the head x is none of the hosts"):
        hosts_of(site, head="x")


def test_without_hosts_in_the_site_those_of_the_command_line_are_taken() -> None:
    assert hosts_of(Site(), ["fd00::1", "b slots=4"], head="b") == (
        Host("b", "b", True, 4),
        Host("fd00::1", "fd00::1"),
    )
    with pytest.raises(HostError, match="no hosts are known"):
        hosts_of(Site())
    with pytest.raises(HostError, match="host a is named twice"):
        hosts_of(Site(), ["a", "a"], head="a")


def test_a_hostfile(tmp_path: Path) -> None:
    file = tmp_path / "hostfile"
    file.write_text(
        "# ours\nnode1 slots=8\n\n  node2\t# the other\r\n192.0.2.3\n2001:db8::4 slots=64\n", encoding="utf-8"
    )
    assert read_hostfile(file) == [Host("node1", "node1", slots=8), Host("node2", "node2"), Host("192.0.2.3", "192.0.2.3"),
                                   Host("2001:db8::4", "2001:db8::4", slots=64)]  # fmt: skip


def test_a_relative_hostfile_lies_beside_its_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hostfile").write_text("node1\n", encoding="utf-8")
    site = _site(tmp_path, "hostfile: hostfile\n")
    monkeypatch.chdir("/")
    assert hosts_of(site) == (Host("node1", "node1", True),)


@pytest.mark.parametrize(
    "text",
    [
        "node1 slots=0",
        "node1 slots=65",
        "node1 slots=x",
        "node1 slots=8 y",
        "node1 8",
        "node1 slots=8;x",
        "node1 slots=\u0661",
    ],
)
def test_what_may_follow_a_name(tmp_path: Path, text: str) -> None:
    file = tmp_path / "hostfile"
    file.write_text(f"good\n{text}\n", encoding="utf-8")
    with pytest.raises(HostError, match=r"hostfile:2: not a host: after the name only slots=1 to slots=64"):
        read_hostfile(file)


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_texts_are_refused_wherever_a_host_is_named(tmp_path: Path, text: str) -> None:
    import json

    for given in (
        f"hosts: [{{name: {json.dumps(text)}}}]\n",
        f"hosts: [{{name: a, address: {json.dumps(text)}}}]\n",
        f"hosts: [{{name: a}}]\nhead: {json.dumps(text)}\n",
    ):
        with pytest.raises(RecipeError) as caught:
            _site(tmp_path, given)
        assert f"{tmp_path}/site.yaml:" in str(caught.value)
    with pytest.raises(HostError):
        hosts_of(Site(), [text])
    with pytest.raises(HostError):
        hosts_of(Site(), ["a"], head=text)
    if text.strip() and "\x00" not in text:
        file = tmp_path / "hostfile"
        file.write_text(f"good\n{text}\n", encoding="utf-8")
        with pytest.raises(HostError, match="hostfile:2: not a host"):
            read_hostfile(file)
    assert not list(tmp_path.rglob("pwned"))
    assert not Path("pwned").exists()


def test_a_message_shows_letters_that_only_look_right(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"letters beyond ASCII: 'n\\u043ede1'"):
        _site(tmp_path, "hosts: [{name: n\u043ede1}]\n")
    with pytest.raises(HostError, match=r"n\\u043ede1"):
        hosts_of(Site(), ["n\u043ede1"])


def test_files_that_are_no_hostfiles(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="cannot be read"):
        read_hostfile(tmp_path / "none")
    with pytest.raises(HostError, match="cannot be read"):
        read_hostfile(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(HostError, match="no plain file"):
        read_hostfile(tmp_path / "pipe")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(HostError, match="cannot be read"):
        read_hostfile(tmp_path / "binary")
    (tmp_path / "huge").write_bytes(b"a\n" * 2**20)
    with pytest.raises(HostError, match="too large"):
        read_hostfile(tmp_path / "huge")
