from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_musa.lint import Kind, lint_text


def found(script: str) -> list[tuple[str, int]]:
    report = lint_text(f"#!/bin/bash\n{script}\n", "run.sh", Kind.SHELL)
    return [(finding.rule.id, finding.line - 1) for finding in report.findings]


COMMENT, BLANK = "shell.comment-in-continuation", "shell.blank-after-backslash"


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("a \\\n  # c\n  --b 1", [(COMMENT, 2)]),
        ("a \\\n  # c\n  # d\n\n  --b 1", []),
        ("a \\\n  # c\n  # d\n  --b 1", [(COMMENT, 2)]),
        ("a \\\n  # c\n  actor.lr=1 \\\n  b.c=2", [(COMMENT, 2)]),
        ("a \\\n  # c\n  lr=1", [(COMMENT, 2)]),
        ("a \\\n  # c\nlr=1", []),
        ("a \\\n  # c\n  b \\\n  d", [(COMMENT, 2)]),
        ("a \\\n  # c\nb \\\n  d", []),
        ("a \\\n  # c\necho", []),
        ("a \\\n  # c", []),
        ('a \\\n  # c\n  "$@"', [(COMMENT, 2)]),
        ("a \\\n  b # c \\\n  --d", [(COMMENT, 2)]),
        ("a # c \\\n  --d", [(COMMENT, 1)]),
        ("a # c \\\nb", []),
        ("x=(a \\\n  # c\n  --d)", []),
        ("a && \\\n  # c\n  b", []),
        ("a \\\\\n# c\n--d", []),
        ("a \\ \n  b", [(BLANK, 1)]),
        ("a \\\t\n  b", [(BLANK, 1)]),
        ("a \\ # c\n  b", [(BLANK, 1)]),
        ("a \\ \n\nb", []),
        ("echo 'x \\ \n y'", []),
        ("# x \\ \ny", []),
    ],
)
def test_continuations(script: str, expected: list[tuple[str, int]]) -> None:
    assert found(script) == expected


def test_heredocs_are_text() -> None:
    assert found("cat > x.txt <<'E'\na \\\n  # c\n  --b\nE") == []


@pytest.mark.parametrize(
    ("script", "rules"),
    [
        ("x=1; rm -rf $x", ["shell.unquoted"]),
        ("x=1; sudo rm -rf ${x}/a", ["shell.unquoted"]),
        ('x=1; rm -rf "$x" "a$x"/b', []),
        ("rm -f $$ $# x", []),
        ("x=1; ls $x", []),
        ("nohup a &", ["shell.nohup"]),
        ('nohup a > "b.$1" 2>&1 &', []),
        ('nohup a >> "b.$(date +%s)" &', []),
        ("nohup a 2> b &", ["shell.nohup"]),
        ("nohup a > b", []),
        ("a &", []),
        ('exec > "log.$1"\nnohup a &', []),
        ("nohup a > b & disown", ["shell.nohup"]),
        ("sudo nohup a > b &", ["shell.nohup"]),
        ("killall -9 a", ["shell.kill-by-name"]),
        ("pkill -P $$", []),
        ("pkill --pidfile x", []),
        ("kill -9 $(pidof a)", ["shell.kill-by-name"]),
        ('kill -9 "$(cat a.pid)"', []),
        ("ps | xargs kill", ["shell.kill-by-name"]),
        ("cat a.pid | xargs kill", []),
        ("bash -c 'pkill a; b'", ["shell.kill-by-name"]),
        ("echo x > a.sh; chmod +x b.sh", ["shell.chmod-other"]),
        ("echo x > a.sh; chmod +x a.sh", []),
        ('echo x > "$1/a.sh"; chmod 755 $1/a.sh', []),
        ("echo x > a.sh; chmod +x b.sh; chmod +x a.sh", []),
        ("touch b.sh; echo x > a.sh; chmod +x b.sh", []),
        ("echo x > a.sh; make; chmod +x b.sh", []),
        ("echo x > a.sh; chmod 600 b.sh", []),
        ("echo x > a.txt; chmod +x b.sh", []),
        ("echo x > a.sh; chmod +x *.sh", []),
        ("head -1 hosts.txt", ["shell.hostfile-head"]),
        ("head -2 hosts.txt", []),
        ("cat machinefile | head -n1", ["shell.hostfile-head"]),
        ("cat a | head -n1", []),
        ("export GLOO_SOCKET_IFNAME=eth0", ["net.interface"]),
        ("export GLOO_SOCKET_IFNAME=lo NAME=eth0", []),
        ("export NCCL_IB_HCA=mlx5", []),
    ],
)
def test_commands(script: str, rules: list[str]) -> None:
    assert [rule for rule, _ in found(script)] == rules


@pytest.mark.parametrize(
    ("script", "rules"),
    [
        ("echo $a", ["shell.unset"]),
        ("echo $A_B", ["shell.unset-environment"]),
        ("echo ${a:-1}; echo $a", ["shell.unset"]),
        ("echo ${a:=1}; echo $a", []),
        ("echo ${a:?no} $a", []),
        ("echo $a; a=1", []),
        ("set -eu\necho $a", []),
        ("set -o pipefail -o nounset\necho $a", []),
        ("set -e\necho $a", ["shell.unset"]),
        (". ./env.sh\necho $a", []),
        ('source venv/bin/activate\necho "$a"', ["shell.unset"]),
        ('eval "$(x)"\necho $a', []),
        ("echo '$a' \\$a", []),
        ("for a in 1; do echo $a; done", []),
        ("while read a; do echo $a; done", []),
        ("f() { local a=1; echo $a $1; }", []),
        ("printf -v a x; echo $a", []),
        ("((a++)); echo $a", []),
        ("for ((a=0; a<3; a++)); do echo $a; done", []),
        ('test -n "$a" && echo $a', []),
        ("[ $a = 1 ] && echo $a", []),
        ("echo ${#a} ${!a}", []),
        ("for a do echo $a; done", []),
        ("a=\nif x; then echo $a; fi", []),
        ("p \\\n  a=$a", ["shell.unset"]),
        ("p b=1 a=$a", ["shell.unset"]),
        ("echo $HOME $SLURM_NODEID $MUSA_VISIBLE_DEVICES", []),
    ],
)
def test_variables(script: str, rules: list[str]) -> None:
    assert [rule for rule, _ in found(script)] == rules


@pytest.mark.parametrize(
    ("script", "rules"),
    [
        ("cp /mnt/a b", ["path.machine"]),
        ("/nfs/bin/python x", ["path.machine"]),
        ("a > /mnt/log", ["path.machine"]),
        ('a="x ${B:-/mnt/y}"', ["path.machine"]),
        ("for h in 10.0.0.1 10.0.0.2; do :; done", ["net.address", "net.address"]),
        ("ssh h 'cd /mnt/x && ls'", ["path.machine"]),
        ("echo 'A=/mnt/x' >> env.sh", ["path.machine"]),
        ("echo A=/mnt/x", []),
        ("printf 'see /mnt/x\\n'", []),
        ("grep -v /mnt/x f", ["path.machine"]),
        ("grep '/mnt/x' f", []),
        ("docker run -v /mnt/a:/mnt/b i", ["path.machine"]),
        ("docker run --volume=/mnt/a:/mnt/b i", ["path.machine"]),
        ("curl --url /data/items/x.json", []),
        ("API_ROUTE=/oss/x", []),
        ("OUT=/oss/x", ["path.machine"]),
        ("cat <<E\nuse /mnt/x\nE", []),
        ("bash <<E\ncp /mnt/x .\nE", ["path.machine"]),
    ],
)
def test_paths_and_addresses(script: str, rules: list[str]) -> None:
    assert [rule for rule, _ in found(script)] == rules


@settings(max_examples=60, deadline=None)
@given(st.text(alphabet=st.sampled_from(list("ab$\"'`(){}[]<>|&;\\\n #=-/é…*!")), max_size=60))
def test_anything_at_all_is_read(text: str) -> None:
    """Whatever stands in a file, there is a report; a script is always read, never `file.syntax`."""
    for kind in (Kind.SHELL, Kind.DOCKERFILE):
        report = lint_text(text, "x", kind)
        assert report.files == 1
        assert "file.syntax" not in {finding.rule.id for finding in report.findings}
    for kind in (Kind.PYTHON, Kind.YAML):
        report = lint_text(text, "x", kind)
        assert report.files + len(report.notes) == 1
