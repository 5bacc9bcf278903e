from __future__ import annotations

import pytest

from verl_musa.lint import Kind, lint_text


def found(text: str) -> list[tuple[str, int]]:
    return [(finding.rule.id, finding.line) for finding in lint_text(text, "a.yaml", Kind.YAML).findings]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: 1\na: 2\n", [("yaml.duplicate-key", 2)]),
        ("a: {b: 1, b: 2}\n", [("yaml.duplicate-key", 1)]),
        ("a: 1\n---\na: 2\n", []),
        ("env_vars:\n  A:\n", [("yaml.empty", 2)]),
        ("env_vars: {A: ''}\n", [("yaml.empty", 1)]),
        ("env_vars: {A: ' '}\n", [("yaml.empty", 1)]),
        ("env_vars: {MUSA_VISIBLE_DEVICES: '', no_proxy: ''}\n", []),
        ("other: {A: ''}\n", []),
        ("a: ${oc.env:B,''}\n", [("yaml.empty", 1)]),
        ("a: ${oc.env:B,null}\n", []),
        ("a: ${B:-}\n", [("yaml.empty", 1)]),
        ("env_vars: {A: '$B'}\n", [("yaml.unexpanded", 1)]),
        ("env_vars: {A: '${A}:x'}\n", [("yaml.self-reference", 1)]),
        ("environment: ['PATH=$PATH:/x']\n", [("yaml.self-reference", 1)]),
        ("env: {A: '$B'}\n", []),
        ("a: !custom {b: /mnt/x}\n", [("path.machine", 1)]),
        ("a: &b {c: /mnt/x}\nd: *b\n", [("path.machine", 1)]),
        ("a: |\n  x\n  cp /mnt/x y\n", [("path.machine", 3)]),
        ("a: [x, /mnt/x]\n", [("path.machine", 1)]),
        ("model_path: /oss/x\n", [("path.machine", 1)]),
        ("a.model_path: /oss/x\n", [("path.machine", 1)]),
        ("url_path: /oss/x\n", []),
        ("volumes: ['/mnt/x:/mnt/y']\n", [("path.machine", 1)]),
        ("volumes: ['x:/mnt/y']\n", []),
        ("network: {MCCL_IB_HCA: 'mlx5_0:1'}\n", [("net.interface", 1)]),
        ("a: [\n", [("file.syntax", 2)]),
        ("", []),
    ],
)
def test_yaml(text: str, expected: list[tuple[str, int]]) -> None:
    assert found(text) == expected


def test_a_template_is_left_out_and_said() -> None:
    report = lint_text("a: {{ b }}\n{% if c %}\n", "a.yaml", Kind.YAML)
    assert report.findings == []
    assert report.notes == ["a.yaml: left out: a template of YAML"]


def test_ray_expands_on_each_worker_is_said() -> None:
    (finding,) = lint_text("env_vars: {PYTHONPATH: '$PYTHONPATH:/x'}\n", "a.yaml", Kind.YAML).findings
    assert "on each worker" in finding.message
