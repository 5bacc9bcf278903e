from __future__ import annotations

import pytest

from verl_musa.lint import Kind, lint_text
from verl_musa.lint.dockerfile import instructions


def found(text: str) -> list[tuple[str, int]]:
    report = lint_text(text, "Dockerfile", Kind.DOCKERFILE)
    return [(finding.rule.id, finding.line) for finding in report.findings]


def test_instructions_with_comments_and_heredocs() -> None:
    text = "# c\nFROM a:1\nRUN a \\\n  # c\n\n  && b\nRUN <<E\nx\nE\nENV A=1\n"
    assert [(one.line, one.name) for one in instructions(text.split("\n"))] == [
        (2, "FROM"),
        (3, "RUN"),
        (7, "RUN"),
        (10, "ENV"),
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("FROM a\n", [("docker.base", 1)]),
        ("FROM --platform=linux/amd64 host:5000/a AS b\nFROM b\n", [("docker.base", 1)]),
        ("FROM a:latest\n", [("docker.base", 1)]),
        ("FROM a:1\n", []),
        ("FROM ${A:-b}\n", [("docker.base", 1)]),
        ("ARG A\nFROM $A\n", []),
        ("RUN pip install a\n", [("docker.pip-unpinned", 1)]),
        ("RUN uv pip install 'a>=1'\n", [("docker.pip-unpinned", 1)]),
        ("RUN pip install a==1.*\n", [("docker.pip-unpinned", 1)]),
        ("RUN pip install -e . --target /x -r r.txt a==1 ./b c/d.whl $E\n", []),
        ("RUN pip install -c c.txt a\n", []),
        ('RUN ["pip", "install", "a"]\n', [("docker.pip-unpinned", 1)]),
        ("RUN <<E\nset -e\npip install a\nE\n", [("docker.pip-unpinned", 3)]),
        ("RUN pip config set global.index-url https://pypi.corp.cn/s\n", [("docker.index-host", 1)]),
        ("RUN pip install --index-url=https://pypi.org/simple a==1\n", []),
        ("ENV A=1 \\\n    UV_INDEX_URL=https://pypi.corp.cn/s\n", [("docker.index-host", 2)]),
        ("ARG PIP_INDEX_URL\n", []),
        ("ARG GITHUB_TOKEN\n", [("docker.secret", 1)]),
        ("ENV DB_PASSWORD hunter22\n", [("docker.secret", 1)]),
        ("ENV PAD_TOKEN=x\n", []),
        ("COPY /mnt/x /y\n", [("path.machine", 1)]),
        ("WORKDIR /root/verl\n", []),
        ("LABEL home=/mnt/x\n", []),
        ("RUN curl http://10.0.0.1/a\n", [("net.address", 1)]),
    ],
)
def test_dockerfile(text: str, expected: list[tuple[str, int]]) -> None:
    assert found(text) == expected


def test_waiver_above() -> None:
    text = "# verl-musa: ignore[docker.base] rebuilt nightly on purpose\nFROM a\n"
    report = lint_text(text, "Dockerfile", Kind.DOCKERFILE)
    assert report.findings == []
    assert [finding.waived for finding in report.waived] == ["rebuilt nightly on purpose"]
