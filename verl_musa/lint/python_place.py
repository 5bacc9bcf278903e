"""Where in a Python program a text stands, and what it is there: a path in use, a command, a route, or words for people."""

from __future__ import annotations

import ast
import enum
import re
from collections.abc import Iterator
from typing import Final

from verl_musa.lint.python_fold import dotted, last_name
from verl_musa.lint.words import word_set


class Place(enum.Enum):
    """What a text is, judged by where it stands."""

    PATH = "path"
    COMMAND = "command"
    PLAIN = "plain"
    NOT_USED = "not used"
    """For people, a pattern, a web route, or something to compare with: nothing is opened by it."""


_PATH_CALLS: Final = word_set(
    "open Path PurePath PosixPath makedirs mkdir listdir scandir chdir rmtree copy copy2 copyfile copytree move remove unlink rename"
    " load save savez savez_compressed savetxt loadtxt fromfile memmap tofile load_file save_file read_parquet read_csv read_json"
    " read_pickle to_parquet to_csv to_json to_pickle from_pretrained save_pretrained load_dataset load_from_disk save_to_disk"
    " snapshot_download glob iglob walk isfile isdir exists getsize FileHandler RotatingFileHandler CDLL LoadLibrary loadtxt"
    " write_table read_table ParquetFile SummaryWriter expanduser abspath realpath open_file init_from_checkpoint"
)
_COMMAND_CALLS: Final = word_set(
    "os.system os.popen subprocess.run subprocess.call subprocess.check_call subprocess.check_output subprocess.Popen"
    " subprocess.getoutput subprocess.getstatusoutput asyncio.create_subprocess_shell asyncio.create_subprocess_exec"
    " shlex.split run_command exec_command run_cmd"
)
_WORDS_CALLS: Final = word_set(
    "debug info warning warn error exception critical log print print_rank_0 log_once warning_once info_once echo secho fail skip xfail"
    " parametrize add_argument_group add_parser ArgumentParser HelpFormatter deprecated"
)
_WORDS_KEYWORDS: Final = word_set(
    "help description epilog metavar usage doc docs title summary example examples message msg reason label prompt placeholder"
)
_ROUTE_CALLS: Final = word_set(
    "get post put delete patch head options route websocket add_route add_api_route add_url_rule urljoin include_router mount"
    " api_route add_get add_post"
)
_COMMAND_METHODS: Final = frozenset({"run_command", "check_output", "check_call", "Popen"})
_COMPARING_CALLS: Final = word_set(
    "startswith endswith removeprefix removesuffix find index count split rsplit partition match"
)
_PATH_NAME: Final = re.compile(
    r"(?:^|_)(?:path|paths|dir|dirs|directory|folder|file|files|filename|filepath|root|home|ckpt|checkpoint|cache|dataset)$",
    re.IGNORECASE,
)
_ROUTE_NAME: Final = re.compile(
    r"url|uri|api|route|endpoint|http|prefix|suffix|regex|pattern|topic|metric|\bkey\b", re.IGNORECASE
)
_VERSION_NAME: Final = re.compile(r"version|release", re.IGNORECASE)
_COMMAND_START: Final = re.compile(
    r"\s*(?:sudo\s+|export\s+|nohup\s+|[A-Z_]+=\S*\s+)*(?:python3?|bash|sh|ray|cp|mv|rm|mkdir|cd|export|nohup|torchrun|docker|rsync|scp|ssh"
    r"|source|cat|ls|tar|chmod|env|pip|git|mount|ln|srun|mpirun|verl-musa)\s"
)


class Places:
    """The places of a module's expressions."""

    def __init__(self, tree: ast.Module) -> None:
        self._parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
        self._docstrings = {
            node.body[0].value
            for node in ast.walk(tree)
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            and node.body
            and isinstance(node.body[0], ast.Expr)
        }

    def of(self, node: ast.expr, text: str) -> Place:
        """What the text of ``node`` is."""
        if self._is_for_nobody(node):
            return Place.NOT_USED
        for child, parent in self._chain(node):
            place = _in_call(child, parent) if isinstance(parent, ast.Call) else _by_parent(child, parent)
            if place is not None:
                break
        else:
            place = Place.PLAIN
        return Place.COMMAND if place is Place.PLAIN and _COMMAND_START.match(text) else place

    def is_version(self, node: ast.expr) -> bool:
        """Whether the text is called a version by what it is given to or compared with."""
        for _, parent in self._chain(node):
            if any(_VERSION_NAME.search(name) for name in _names_at(parent)):
                return True
        return False

    def statement(self, node: ast.AST) -> int:
        """First line of the statement that ``node`` belongs to."""
        while not isinstance(node, ast.stmt) and node in self._parents:
            node = self._parents[node]
        return getattr(node, "lineno", 0)

    def _is_for_nobody(self, node: ast.expr) -> bool:
        if node in self._docstrings:
            return True
        parent = self._parents.get(node)
        return isinstance(parent, ast.Expr)  # a text that stands alone is a comment

    def _chain(self, node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
        """Pairs of child and parent, up to the statement."""
        while node in self._parents and not isinstance(node, ast.stmt):
            parent = self._parents[node]
            yield node, parent
            node = parent


def _names_at(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Assign):
        yield from (last_name(target) for target in node.targets)
    elif isinstance(node, ast.AnnAssign):
        yield last_name(node.target)
    elif isinstance(node, ast.Call):
        yield last_name(node.func)
    elif isinstance(node, ast.keyword):
        yield node.arg or ""
    elif isinstance(node, ast.Compare):
        yield from (dotted(side) for side in (node.left, *node.comparators))
        yield from (
            last_name(side.func) for side in (node.left, *node.comparators) if isinstance(side, ast.Call)
        )


def _by_name(name: str) -> Place | None:
    if _ROUTE_NAME.search(name):
        return Place.NOT_USED
    return Place.PATH if _PATH_NAME.search(name) else None


def _by_parent(child: ast.AST, parent: ast.AST) -> Place | None:
    """What a node that is no call makes of its child; None where it says nothing."""
    place = None
    match parent:
        case ast.Raise() | ast.Assert() | ast.Compare():
            place = Place.NOT_USED
        case ast.keyword():
            place = Place.NOT_USED if parent.arg in _WORDS_KEYWORDS else _by_name(parent.arg or "")
        case ast.Assign() | ast.AnnAssign():
            places = [found for name in _names_at(parent) if (found := _by_name(name)) is not None]
            place = places[0] if places else Place.PLAIN
        case ast.arguments():
            place = _by_name(_parameter(child, parent)) or Place.PLAIN
        case ast.Dict():
            place = _by_key(child, parent)
        case ast.Subscript(slice=index):
            place = Place.NOT_USED if index is child else None
    return place


def _by_key(child: ast.AST, parent: ast.Dict) -> Place | None:
    if any(isinstance(key, ast.Constant) and key.value == "op" for key in parent.keys):
        return Place.NOT_USED  # a JSON patch, whose paths lead into a document
    for key, value in zip(parent.keys, parent.values, strict=True):
        if key is child:
            return Place.NOT_USED
        if value is child and isinstance(key, ast.Constant) and isinstance(key.value, str):
            return Place.NOT_USED if key.value in _WORDS_KEYWORDS else _by_name(key.value)
    return None


def _parameter(child: ast.AST, arguments: ast.arguments) -> str:
    """Name of the parameter whose default ``child`` is."""
    positional = [*arguments.posonlyargs, *arguments.args]
    pairs = [
        *zip(reversed(positional), reversed(arguments.defaults), strict=False),
        *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True),
    ]
    return next((name.arg for name, default in pairs if default is child), "")


def _in_call(child: ast.AST, call: ast.Call) -> Place | None:
    """What a call makes of its argument; None where it passes it on to what stands around it."""
    name, last = dotted(call.func), last_name(call.func)
    if child is call.func:
        return None
    if is_command_call(call):
        return Place.COMMAND
    first = bool(call.args) and call.args[0] is child
    if _opens_nothing(name, last, first=first):
        return Place.NOT_USED
    if last == "add_argument":
        return _by_option(child, call)
    opened = (first and last in _PATH_CALLS) or name in ("sys.path.insert", "sys.path.append")
    return Place.PATH if opened else None


def is_command_call(call: ast.Call) -> bool:
    """Whether the call runs what it is given as a command."""
    return dotted(call.func) in _COMMAND_CALLS or last_name(call.func) in _COMMAND_METHODS


def _opens_nothing(name: str, last: str, *, first: bool) -> bool:
    """Whether the call only shows, compares or matches its argument, or serves it as a web route."""
    if name.startswith(("re.", "regex.")) or last in _COMPARING_CALLS | _WORDS_CALLS:
        return True
    return first and (last == "getenv" or (last in _ROUTE_CALLS and "environ" not in name))


def _by_option(child: ast.AST, call: ast.Call) -> Place | None:
    """An argument of argparse's ``add_argument``: its default is judged by the option's name."""
    option = call.args[0] if call.args else None
    text = option.value if isinstance(option, ast.Constant) and isinstance(option.value, str) else ""
    return _by_name(text.strip("-").replace("-", "_")) if isinstance(child, ast.keyword) else Place.NOT_USED
