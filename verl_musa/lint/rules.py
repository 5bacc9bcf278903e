"""The table of rules. docs/lint.md explains each with an example."""

from __future__ import annotations

from typing import Final

from verl_musa.checks import Status
from verl_musa.lint.model import Rule

RULES: Final[dict[str, Rule]] = {}
"""Id -> rule, in the order of docs/lint.md."""


def _rule(name: str, status: Status, title: str, fix: str) -> Rule:
    RULES[name] = Rule(id=name, title=title, status=status, fix=fix)
    return RULES[name]


PATH_MACHINE = _rule(
    "path.machine",
    Status.FAIL,
    "absolute paths of one machine or site",
    "take it from an argument, a variable or ${site.NAME} of site.yaml",
)
PATH_USER = _rule(
    "path.user",
    Status.FAIL,
    "paths with a person's name in them",
    "take it from an argument, a variable or ${site.NAME} of site.yaml",
)
PATH_HOME = _rule(
    "path.home",
    Status.WARN,
    "data and models in the home of whoever starts the process",
    "name a folder that every host sees: an argument, or ${site.NAME} of site.yaml",
)
ADDRESS = _rule(
    "net.address",
    Status.FAIL,
    "addresses and names of single hosts",
    "take it from the hostfile, an argument or the environment",
)
INTERFACE = _rule(
    "net.interface",
    Status.WARN,
    "network interfaces and cards named for every node alike",
    "find it per node, or name it in site.yaml: interface names differ between nodes",
)
DEBUG_DUMP = _rule(
    "debug.dump",
    Status.FAIL,
    "files that a debugging session left being written",
    "remove the call, or write into the run directory under a name from the config",
)
DEBUG_BREAKPOINT = _rule(
    "debug.breakpoint",
    Status.FAIL,
    "breakpoints, which hang a worker that has no terminal",
    "remove it",
)
SECRET = _rule(
    "secret",
    Status.FAIL,
    "tokens, passwords and private keys",
    "revoke it, and read it from the environment or a secret file at run time",
)
COMMENT_IN_CONTINUATION = _rule(
    "shell.comment-in-continuation",
    Status.FAIL,
    "comments that end a continued command early",
    "move the comment above the command: bash ends the command there and drops every argument below",
)
BLANK_AFTER_BACKSLASH = _rule(
    "shell.blank-after-backslash",
    Status.FAIL,
    "blanks after a continuing backslash",
    "delete the blank: the backslash then escapes it, and the command ends on this line",
)
UNQUOTED = _rule(
    "shell.unquoted",
    Status.FAIL,
    "unquoted variables as operands of rm, cd, cp and mv",
    'put it in double quotes: "$NAME"; an empty or spaced value otherwise names other files',
)
NOHUP = _rule(
    "shell.nohup",
    Status.FAIL,
    "background jobs whose output is lost or shared between runs",
    'redirect both streams to a file of this run: > "logs/$RUN_ID.log" 2>&1 &',
)
KILL_BY_NAME = _rule(
    "shell.kill-by-name",
    Status.FAIL,
    "processes ended by name",
    "keep the process id ($!) and end that one: by name, other users' and other runs' processes die too",
)
CHMOD_OTHER = _rule(
    "shell.chmod-other",
    Status.FAIL,
    "chmod of another file than the one just written",
    "name the file that was written",
)
UNSET = _rule(
    "shell.unset",
    Status.FAIL,
    "variables that are used and never set",
    "set it, give it a default ${NAME:-value}, or stop where it is missing: ${NAME:?message}",
)
UNSET_ENVIRONMENT = _rule(
    "shell.unset-environment",
    Status.WARN,
    "variables that only the caller's environment can set",
    "stop where it is missing: ${NAME:?message}, or give it a default ${NAME:-value}",
)
HOSTFILE_HEAD = _rule(
    "shell.hostfile-head",
    Status.WARN,
    "a head node chosen by the order of a hostfile",
    "name the head explicitly: sorting or editing the file otherwise moves it",
)
YAML_DUPLICATE = _rule(
    "yaml.duplicate-key",
    Status.FAIL,
    "keys written twice in one mapping",
    "keep one of the two lines: parsers silently take the last",
)
YAML_EMPTY = _rule(
    "yaml.empty",
    Status.FAIL,
    "variables that render as empty text",
    "give it a value, or remove the line so that the default applies",
)
YAML_UNEXPANDED = _rule(
    "yaml.unexpanded",
    Status.WARN,
    "shell variables in a Ray runtime environment",
    "write the value itself, or ${oc.env:NAME} where OmegaConf reads the file",
)
YAML_SELF_REFERENCE = _rule(
    "yaml.self-reference",
    Status.FAIL,
    "environment variables that refer to themselves where no shell expands them",
    "write the whole value: no shell expands it here",
)
DOCKER_BASE = _rule(
    "docker.base",
    Status.FAIL,
    "base images that move",
    "name a version, or better a digest: FROM image:version@sha256:...",
)
DOCKER_UNPINNED = _rule(
    "docker.pip-unpinned",
    Status.FAIL,
    "packages installed without a version",
    "pin it (name==version), or install from a file of exact pins with -r",
)
DOCKER_INDEX = _rule(
    "docker.index-host",
    Status.FAIL,
    "package indexes of one site",
    "leave the index to pip's own configuration on the building machine",
)
DOCKER_SECRET = _rule(
    "docker.secret",
    Status.FAIL,
    "secrets in build arguments and image variables",
    "use RUN --mount=type=secret: ARG and ENV stay readable in the image's history",
)
WAIVER_REASON = _rule(
    "waiver.no-reason",
    Status.FAIL,
    "waivers that do not say why",
    "write the reason after the bracket: # verl-musa: ignore[ID] reason",
)
WAIVER_UNUSED = _rule(
    "waiver.unused",
    Status.FAIL,
    "waivers that waive nothing",
    "remove it",
)
WAIVER_UNKNOWN = _rule(
    "waiver.unknown-rule",
    Status.FAIL,
    "waivers of rules that do not exist",
    "use an id of docs/lint.md",
)
UNREADABLE = _rule(
    "file.syntax",
    Status.UNKNOWN,
    "files that cannot be parsed",
    "correct the syntax; nothing else in this file was looked at",
)
