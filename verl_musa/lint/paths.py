"""Which texts are paths of one machine, of one person, or of nobody in particular.

A text is folded before it comes here: parts that are known only at run time stand as :data:`UNKNOWN_PART`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from verl_musa.lint import rules
from verl_musa.lint.model import Rule
from verl_musa.lint.words import word_set

UNKNOWN_PART: Final = "…"

SYSTEM_ROOTS: Final = word_set(
    "bin boot dev etc lib lib32 lib64 libexec opt proc run sbin srv sys tmp usr var Applications Library System"
    " sgl-workspace"
)
"""First parts of paths that every Linux host or every image of a kind has."""

_NUMBERED_ROOTS = (
    r"mnt\d*|nfs\d*|nas\d*|home\d*|root|workspaces?|scratch|gpfs\w*|lustre\w*|cpfs\w*|cfs\w*|juicefs|jfs|fsx|ceph\w*|afs|beegfs\w*"
    r"|weka\w*|panfs|dfs\w*|pfs\w*|apdcephfs\w*|disks?\d*|ssd\d*|nvme\d*|hdd\d*|raid\d*|Users|sharedata|shared_data|inspire"
)
_SITE_ROOT: Final = re.compile(rf"(?:{_NUMBERED_ROOTS})")
_COMMON_ROOT: Final = re.compile(
    r"(?:data|dataset|work|user|model|media|volume|vol|share|storage|private|project|public|ckpt|checkpoint|group)s?\d*|shared"
)
"""Roots that are as often the name of a web route or a metric: these need more evidence."""

_NETWORK_ROOT: Final = re.compile(
    r"mnt\d*|nfs\d*|nas\d*|gpfs\w*|lustre\w*|cpfs\w*|juicefs|jfs|fsx|ceph\w*|apdcephfs\w*"
)
"""In an image, only mounts are somebody's machine; /root, /data and /workspace are the image's own."""

_SERVICE_ACCOUNTS: Final = word_set(
    "admin app build builder circleci coder container default docker developer ec2-user jenkins jovyan linuxbrew me node nobody"
    " nonroot ray root runner service test tester ubuntu user username vscode work worker you"
)
_PLACEHOLDER: Final = re.compile(
    r"path/to|/abs/path|not/a/real|\.\.\.|<[^>]*>|\b(?:your|my|some|foo|bar|xxx+|dummy|fake|nonexist\w*|example|placeholder)\b|your_|my_"
    r"|does[_-]not[_-]exist",
    re.IGNORECASE,
)
_HOMES: Final = re.compile(r"/(?:home\d*|Users)/([^/]+)")
_SITE_HOMES: Final = re.compile(
    r"/[^/]+(?:/[^/]+)?/(?:users?|home|homes|people|personal)/([A-Za-z][\w.-]+)(?=/)"
)
_ROUTE_PART: Final = re.compile(
    r"v\d+|api|metrics|health\w*|generate|chat|completions|static|docs|openapi\.json|spec|metadata|status",
    re.IGNORECASE,
)
_TOKEN: Final = re.compile(
    r"(?:(?<=^)|(?<=[\s=:,;\"'`(\[@]))(?:file://)?(~?[\w.-]*/[^\s\"'`,;:|()\[\]{}$*?&\\!]*)", re.MULTILINE
)
MIN_FILE_PARTS: Final = 2
MIN_SURE_PARTS: Final = 3


class PathHit(NamedTuple):
    """A path that breaks a rule: which one, and the path itself."""

    rule: Rule
    path: str


def judge(
    path: str, *, used_as_path: bool = False, in_image: bool = False, only_known_roots: bool = False
) -> PathHit | None:
    """Say which rule one path breaks, if any.

    Args:
        path: the folded text.
        used_as_path: the place says that it is a path (an argument of ``open``, a name such as ``data_dir``), so that
            absolute paths of an unknown root count too.
        in_image: it is read inside a container image, whose own folders are not a machine's.
        only_known_roots: it stands in a unit test, where paths such as ``/models/x`` are made up and never opened.
    """
    path = path.strip().removeprefix("file://")
    if _PLACEHOLDER.search(path) or re.search(r"[\s\\|^*:]", path):
        return None
    if path.startswith("~"):
        return None if in_image else _judge_home(path)
    parts = [part for part in path.split("/") if part]
    if not path.startswith("/") or path.startswith("//") or not parts or not re.match(r"[\w.]", parts[0]):
        return None
    if _person(path, parts[0]):
        return PathHit(rules.PATH_USER, path)
    if in_image:
        found = bool(_NETWORK_ROOT.fullmatch(parts[0]))
    else:
        believed = bool(_SITE_ROOT.fullmatch(parts[0])) or not only_known_roots
        found = believed and _of_a_machine(path, parts, used_as_path)
    return PathHit(rules.PATH_MACHINE, path) if found else None


def _of_a_machine(path: str, parts: list[str], used_as_path: bool) -> bool:
    root = parts[0]
    if root in SYSTEM_ROOTS:
        return False
    enough = len(parts) >= MIN_FILE_PARTS
    if _SITE_ROOT.fullmatch(root):
        return enough or used_as_path or path.endswith("/")
    sure = enough and (
        used_as_path or len(parts) >= MIN_SURE_PARTS or bool(re.search(r"\.\w{1,8}$", parts[-1]))
    )
    if _COMMON_ROOT.fullmatch(root):
        return sure and not any(_ROUTE_PART.fullmatch(part) for part in parts)
    return used_as_path and enough and not any(_ROUTE_PART.fullmatch(part) for part in parts)


def _person(path: str, root: str) -> str:
    """The name of a person in ``path``; empty where there is none."""
    found = _HOMES.match(path)
    if found is None and (_SITE_ROOT.fullmatch(root) or _COMMON_ROOT.fullmatch(root)):
        found = _SITE_HOMES.match(path)
    name = found[1] if found else ""
    known = UNKNOWN_PART in name or name.lower() in _SERVICE_ACCOUNTS or not re.match(r"\w", name)
    return "" if known else name


def _judge_home(path: str) -> PathHit | None:
    owner, _, rest = path[1:].partition("/")
    if owner:
        person = re.fullmatch(r"[a-z][\w.-]*", owner) and owner not in _SERVICE_ACCOUNTS and rest
        return PathHit(rules.PATH_USER, path) if person else None
    # ~/.cache, ~/.config and their like are where programs keep their own files, on every host alike.
    return PathHit(rules.PATH_HOME, path) if rest.strip("/") and rest[0] not in f".{UNKNOWN_PART}" else None


def inside(text: str, **reading: bool) -> Iterator[PathHit]:
    """The faults among the paths that stand in ``text``, such as a command line or ``key=/path`` pairs.

    Args:
        text: the folded text.
        reading: how each path is read: the options of :func:`judge`.
    """
    for found in _TOKEN.finditer(text):
        hit = judge(found[1].rstrip("."), **reading)
        if hit is not None:
            yield hit
