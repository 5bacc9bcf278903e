"""What ssh is really given: a stand-in program on PATH writes its arguments down, and runs the far command as sshd's shell would."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from verl_musa.cluster.hosts import Host
from verl_musa.cluster.ssh import Done, Ssh, run_all
from verl_musa.errors import HostError, RecipeError
from verl_musa.recipe import Site

STANDIN = """\
#!{python}
import json, os, subprocess, sys
with open({log!r}, "a") as stream:
    stream.write(json.dumps(sys.argv[1:]) + "\\n")
# The real one joins the words behind the destination with blanks, and the far shell splits them again.
sys.exit(subprocess.call(["/bin/sh", "-c", " ".join(sys.argv[sys.argv.index("--") + 2:])]))
"""
# What ssh's own parser takes for an option with a value; -T is the only one without.
WITH_VALUE = {"-o", "-i", "-F", "-p", "-l"}


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder, log = tmp_path / "bin", tmp_path / "argv"
    folder.mkdir()
    program = folder / "ssh"
    program.write_text(STANDIN.format(python=sys.executable, log=str(log)), encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    return log


def _calls(log: Path) -> list[list[str]]:
    return [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]


def _options(call: list[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """The options that ssh sees and the rest, by ssh's own rule: options end at ``--``."""
    found, rest = [], list(call)
    while rest[0] != "--":
        word = rest.pop(0)
        assert word == "-T" or word in WITH_VALUE, word
        found.append((word, "" if word == "-T" else rest.pop(0)))
    return found, rest[1:]


HOSTILE = (
    "; touch pwned",
    "$(touch pwned)",
    "`touch pwned`",
    "a\ntouch pwned",
    "' ; touch pwned ; '",
    '"; touch pwned; "',
    "-oProxyCommand=touch pwned",
    "--help",
    "*",
    "~root",
    "${HOME}",
    "\\",
    "!x",
    "\u2028touch pwned",
    "",
    "x" * 50_000,
)


@pytest.mark.parametrize("value", HOSTILE)
def test_an_argument_arrives_as_one_word_whatever_is_in_it(log: Path, tmp_path: Path, value: str) -> None:
    host = Host("node1", "192.0.2.1")
    code = "import json,sys; print(json.dumps(sys.argv[1:]))"
    done = Ssh(Site()).run(host, [sys.executable, "-c", code, value, "end"], timeout_s=30)
    assert json.loads(done.stdout) == [value, "end"]
    options, rest = _options(_calls(log)[0])
    assert rest[0] == "192.0.2.1"
    assert len(rest) == 2, "the far command is one word of ssh"
    assert not any("ProxyCommand" in text for pair in options for text in pair)
    assert not list(tmp_path.rglob("pwned"))


@pytest.mark.usefixtures("log")
def test_settings_of_the_site_become_options_with_their_value() -> None:
    site = Site.model_validate(
        {"ssh": {"user": "runner", "port": 2222, "key": "/keys/a b", "known_hosts": '/keys/"known" hosts', "config": "/keys/config", "connect_seconds": 7},
         "container": "verl-musa", "engine": "podman", "python": "/opt/x y/python"}
    )  # fmt: skip
    ssh = Ssh(site)
    command = ssh.command(Host("n", "2001:db8::1"), ["echo", "a b"])
    options, rest = _options(command[1:])
    assert ("-l", "runner") in options
    assert ("-p", "2222") in options
    assert ("-i", "/keys/a b") in options
    assert ("-F", "/keys/config") in options
    assert ("-o", "ConnectTimeout=7") in options
    assert ("-o", "IdentitiesOnly=yes") in options
    assert ("-o", 'UserKnownHostsFile="/keys/\\"known\\" hosts"') in options
    assert rest == ["2001:db8::1", "podman exec -i verl-musa echo 'a b'"]
    assert ("-o", "BatchMode=yes") in options, "nobody is there to answer a question"


@pytest.mark.parametrize(
    "site",
    [
        {"ssh": {"user": "-oProxyCommand=x"}},
        {"ssh": {"user": "root;x"}},
        {"ssh": {"user": "root\n"}},
        {"ssh": {"key": "-oProxyCommand=x"}},
        {"ssh": {"key": "relative"}},
        {"ssh": {"key": "/a\nProxyCommand x"}},
        {"ssh": {"known_hosts": "/a\x00b"}},
        {"ssh": {"port": "22 -oProxyCommand=x"}},
        {"ssh": {"port": 0}},
        {"ssh": {"options": ["-oProxyCommand=x"]}},
        {"container": "--privileged"},
        {"container": "a b"},
        {"container": "$(x)"},
        {"container": "a\nb"},
        {"engine": "rm"},
        {"python": "python"},
        {"python": "/opt/../../bin/sh"},
        {"python": "/opt/python\n"},
        {"shared": "/mnt/../etc"},
        {"shared": "mnt"},
        {"networks": {"training": "eth0; x"}},
        {"networks": {"training": "-j DROP"}},
        {"networks": {"training": "198.51.100.0/33"}},
        {"hosts": [{"name": "a", "training": "node1"}]},
        {"hosts": [{"name": "a", "training": "198.51.100.1; x"}]},
        {"hosts": [{"name": "a", "slots": "8"}]},
        {"ray": {"port": "6379"}},
        {"ray": {"port": 80}},
        {"ray": {"port": 8265}},
        {"ray": {"workers": [24999, 20000]}},
        {"ray": {"workers": [6000, 7000]}},
    ],
    ids=str,
)
def test_hostile_and_impossible_settings_are_refused_by_line(tmp_path: Path, site: dict[str, Any]) -> None:
    import yaml

    from verl_musa.recipe import load_site

    file = tmp_path / "site.yaml"
    file.write_text(yaml.safe_dump(site), encoding="utf-8")
    with pytest.raises(RecipeError, match=r"site\.yaml:\d+: "):
        load_site(file)


@pytest.mark.usefixtures("log")
def test_a_command_that_does_not_end_is_given_up_with_what_it_started() -> None:
    start = time.monotonic()
    done = Ssh(Site()).run(Host("a", "a"), ["sh", "-c", "echo early; sleep 60 & echo $!; wait"], timeout_s=2)
    assert time.monotonic() - start < 10
    assert done.code is None
    assert done.stdout.startswith(b"early")
    assert done.why() == f"no end within {done.seconds:.0f} s"
    pid = int(done.stdout.split()[1])
    for _ in range(50):
        if (
            not Path(f"/proc/{pid}").exists()
            or "Z" in Path(f"/proc/{pid}/stat").read_text(encoding="ascii").split(")")[1][:3]
        ):
            break
        time.sleep(0.1)
    else:
        pytest.fail("what the stand-in started still runs")


@pytest.mark.usefixtures("log")
def test_input_output_and_failures() -> None:
    ssh = Ssh(Site())
    done = ssh.run(Host("a", "a"), ["cat"], stdin=b"\x00\xffbytes", timeout_s=30)
    assert (done.stdout, done.ok) == (b"\x00\xffbytes", True)
    done = ssh.run(Host("a", "a"), ["sh", "-c", "echo first >&2; echo last >&2; exit 3"], timeout_s=30)
    assert (done.code, done.ok, done.unreachable, done.why()) == (3, False, False, "exit code 3: last")
    assert Done("a", 255, b"", "", 1.0).unreachable


def test_no_ssh_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(HostError, match="no ssh program"):
        Ssh(Site())


def test_all_hosts_at_once_in_their_order() -> None:
    everybody = threading.Barrier(20)

    class Together:
        def run(self, host: Host, argv: Any, *, stdin: bytes = b"", timeout_s: float) -> Done:
            everybody.wait(timeout=60)  # broken where they come one after another
            return Done(host.name, 0, stdin + " ".join(argv).encode(), "", timeout_s)

    hosts = [Host(f"node{number}", "a") for number in range(20)]
    seen: list[str] = []
    found = run_all(
        Together(),
        hosts,
        lambda host: ["on", host.name],
        stdin=lambda host: host.name[-1:].encode(),
        timeout_s=9,
        seen=lambda one: seen.append(one.host),
    )
    assert list(found) == [host.name for host in hosts]
    assert found["node7"].stdout == b"7on node7"
    assert sorted(seen) == sorted(found)
    assert run_all(Together(), [], ["x"], timeout_s=1) == {}
