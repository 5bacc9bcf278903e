"""What the lint reads and what it says: sources, rules, findings and the report."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

from verl_musa.checks import Result, Status


class Kind(enum.StrEnum):
    """What a file is read as."""

    PYTHON = "python"
    SHELL = "shell"
    YAML = "yaml"
    DOCKERFILE = "dockerfile"


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One rule.

    Attributes:
        id: its name, such as ``path.machine``.
        title: what it looks at, for people.
        status: what a finding of it is.
        fix: what to do, where a finding has nothing better to say.
    """

    id: str
    title: str
    status: Status
    fix: str


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One fault at one place.

    Attributes:
        rule: the rule that it breaks.
        file: the file, as it is shown.
        line: 1-based; 0 where the whole file is meant.
        column: 1-based; 0 where the whole line is meant.
        message: what was seen.
        fix: what to do.
        statement: first line of the statement, command or mapping entry that the line belongs to.
        waived: the reason of the waiver that covers it; empty where none does.
    """

    rule: Rule
    file: str
    line: int
    column: int
    message: str
    fix: str
    statement: int = 0
    waived: str = ""

    @property
    def where(self) -> str:
        """``file:line:column``, as far as it is known."""
        parts = [self.file, *(str(number) for number in (self.line, self.column) if number)]
        return ":".join(parts)

    @property
    def order(self) -> tuple[str, int, int, str, str]:
        """Sort key: by place, then by rule."""
        return self.file, self.line, self.column, self.rule.id, self.message

    def as_result(self) -> Result:
        """The finding as the outcome of a check, for the common exit code and JSON."""
        return Result(
            check=self.rule.id,
            looks_at=self.rule.title,
            status=self.rule.status,
            evidence=self.message,
            fix=self.fix,
            where=self.where,
        )


@dataclass(frozen=True, kw_only=True)
class Source:
    """One file's text.

    Attributes:
        file: its name as shown in findings.
        text: its content.
        kind: what it is read as.
    """

    file: str
    text: str = field(repr=False)
    kind: Kind

    @cached_property
    def lines(self) -> list[str]:
        """Physical lines, without their ends."""
        return self.text.split("\n")

    def finding(
        self, rule: Rule, line: int, column: int, message: str, *, fix: str = "", statement: int = 0
    ) -> Finding:
        """A finding in this file; ``fix`` defaults to the rule's own.

        ``column`` counts as the kind's parser does: UTF-8 bytes, in YAML characters. The finding has characters.
        """
        return Finding(
            rule=rule,
            file=self.file,
            line=line,
            column=column if self.kind is Kind.YAML else self._characters(line, column),
            message=message,
            fix=fix or rule.fix,
            statement=statement or line,
        )

    def _characters(self, line: int, column: int) -> int:
        text = self.lines[line - 1] if 0 < line <= len(self.lines) else ""
        if not column or text.isascii():
            return column
        return len(text.encode()[: column - 1].decode(errors="ignore")) + 1


@dataclass(frozen=True)
class Comment:
    """One comment: where it starts, its text with the ``#``, and whether it has the line for itself."""

    line: int
    text: str
    alone: bool


@dataclass
class Analysis:
    """What one reader found in one file."""

    findings: list[Finding] = field(default_factory=list)
    comments: list[Comment] = field(default_factory=list)


@dataclass(kw_only=True)
class Report:
    """The outcome of one lint.

    Attributes:
        findings: by file and line; waived ones left out.
        waived: findings that a waiver covers, with its reason.
        notes: what was not looked at, and why.
        files: how many files were read.
    """

    findings: list[Finding] = field(default_factory=list)
    waived: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    files: int = 0

    def extend(self, other: Report) -> None:
        """Take over everything that ``other`` holds."""
        self.findings += other.findings
        self.waived += other.waived
        self.notes += other.notes
        self.files += other.files

    def results(self) -> list[Result]:
        """The findings as results of checks."""
        return [finding.as_result() for finding in self.findings]

    def sorted(self) -> Report:
        """The same report in order of place."""
        return replace(
            self,
            findings=sorted(self.findings, key=lambda one: one.order),
            waived=sorted(self.waived, key=lambda one: one.order),
        )


def unique(findings: Iterator[Finding]) -> list[Finding]:
    """Each finding once: several readings of one text may meet at the same fault."""
    return list({(one.rule.id, one.line, one.message): one for one in findings}.values())
