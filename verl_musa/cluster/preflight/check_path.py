"""Checks of the files: the shared folder, and that each path of the recipe is the same data on every host."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from verl_musa.checks import Finding, fail, ok, warn
from verl_musa.cluster.hosts import Host
from verl_musa.cluster.preflight.view import HostCheck, MissingFactError, View
from verl_musa.recipe import Resolved

SHOWN = 3
LISTS = ("PYTHONPATH",)
SEARCHED = ("PATH", "LD_LIBRARY_PATH")
"""Places of programs and libraries, where a missing folder is usual; version.* compares what is in them."""

LOCAL_FOLDERS = ("/tmp", "/dev", "/proc", "/sys", "/run")  # noqa: S108  (of an environment: each host has its own)


def paths_of(resolved: Resolved) -> dict[str, str]:
    """Every path that the recipe and its environment name -> the path; those of a site that is not set are left out."""
    return {
        name: path for name, path in _named(resolved) if path.startswith("/") and not _is_local(name, path)
    }


def _is_local(name: str, path: str) -> bool:
    return name.startswith("env ") and any(path == one or path.startswith(f"{one}/") for one in LOCAL_FOLDERS)


def _named(resolved: Resolved) -> Iterator[tuple[str, str]]:
    recipe = resolved.recipe
    yield "recipe", str(recipe.folder)
    for name in ("model", "critic", "reward_model"):
        model = getattr(recipe, name)
        if model is not None:
            yield f"{name}.path", model.path
    yield from _numbered("data.train", recipe.data.train)
    yield from _numbered("data.val", recipe.data.val)
    yield from _numbered("conversion", [one.output for one in recipe.conversion])
    yield from _of_environment(resolved.runtime_env)


def _of_environment(environment: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if isinstance(environment.get("working_dir"), str):
        yield "runtime_env.working_dir", environment["working_dir"]
    yield from _numbered(
        "runtime_env.py_modules", [str(path) for path in environment.get("py_modules") or ()]
    )
    for name, value in (environment.get("env_vars") or {}).items():
        if name not in SEARCHED:
            yield from _numbered(f"env {name}", str(value).split(":") if name in LISTS else [str(value)])


def _numbered(name: str, paths: Sequence[str]) -> Iterator[tuple[str, str]]:
    for index, path in enumerate(paths):
        yield f"{name}[{index}]" if index else name, path


def made_by_run(resolved: Resolved, path: str) -> bool:
    """Whether a run makes what is missing there before it starts the job."""
    made = [str(resolved.assets_dir)] if resolved.assets_dir is not None else []
    made += [one.output for one in resolved.recipe.conversion]
    return any(path == one or path.startswith(f"{one}/") for one in made)


def _data(view: View, host: Host) -> Mapping[str, Any]:
    found = view.data.get(host.name)
    if found is None:
        raise MissingFactError(
            f"not known: {view.data_errors.get(host.name, 'its files were not looked at')}"
        )
    return found


def _shared(view: View, host: Host) -> Finding | None:
    shared = view.site.shared
    if shared is None and len(view.hosts) == 1:
        return None
    if shared is None:
        return fail(
            "the site names no shared folder",
            "set `shared` in the site to a folder that all hosts see under one path",
        )
    said = _data(view, host)["canary"]
    if "error" in said or said["value"].get("error"):
        return fail(
            f"{shared}: {said.get('error') or said['value']['error']}",
            f"mount the shared folder at {shared}, writable; see whether the mount hangs (stat -f)",
        )
    found = said["value"]
    unseen = [name for name in found["missing"] if _left_one(view, name)]
    if unseen:
        alone = ", and its own appear nowhere" if _alone(view, host) else ""
        return fail(
            f"{shared}: files of {', '.join(unseen)} do not appear here{alone}",
            f"mount the same storage at {shared} on all hosts",
        )
    if found["left"]:
        return warn(f"{', '.join(found['left'])} could not be removed", "remove it by hand")
    return ok(f"{shared}: files of all hosts seen after {found['seconds'] or 0:.1f} s")


def _left_one(view: View, name: str) -> bool:
    """Whether that host says that it left its file; if not, its absence elsewhere is no news."""
    said = view.data.get(name, {}).get("canary") or {}
    return "value" in said and not said["value"].get("error")


def _alone(view: View, host: Host) -> bool:
    """Whether nobody else sees this host's files."""
    others = [
        said["canary"]["value"]
        for name, said in view.data.items()
        if name != host.name and "value" in (said["canary"] or {})
    ]
    return bool(others) and all(host.name in one.get("missing", ()) for one in others)


def _run(view: View, host: Host) -> Finding | None:
    if view.run_dir is None or len(view.hosts) == 1 or not host.head:
        return None
    shared = view.site.shared
    if shared is None or not Path(view.run_dir).resolve().is_relative_to(Path(shared).resolve()):
        return fail(
            f"{view.run_dir} is not below the shared folder {shared or '(none)'}",
            "give --runs-dir a folder below it",
        )
    return ok(str(view.run_dir))


def _exists(view: View, host: Host) -> Finding | None:
    if view.resolved is None:
        return None
    paths, said = paths_of(view.resolved), _data(view, host)["paths"]
    missing, waiting = [], []
    for name, path in paths.items():
        one = said.get(name, {"error": "not looked at"})
        if "error" in one:
            return fail(
                f"{name}: {path}: {one['error']}", "see whether the mount hangs (stat -f), and mount it again"
            )
        lack = _lack(one["value"])
        if lack and not one["value"]["exists"] and _may_wait(view, name, path):
            waiting.append(name)
        elif lack:
            missing.append(f"{name}: {path} {lack}")
    if missing:
        more = f"; and {len(missing) - SHOWN} more" if len(missing) > SHOWN else ""
        return fail(
            "; ".join(missing[:SHOWN]) + more, f"mount or copy it to {host.name}, or correct the path"
        )
    there = len(paths) - len(waiting)
    return ok(f"{there} paths" + (f"; on no host yet: {', '.join(waiting)}" if waiting else ""))


def _lack(fact: Mapping[str, Any]) -> str:
    """What is wrong with one path; empty where nothing is."""
    if not fact["exists"]:
        return "is not there" + (
            f" (a link to {fact['dangling']})" if "dangling" in fact else f", {fact['parent']} is"
        )
    if not fact["readable"] or fact["unreadable"]:
        return "cannot be read" + (f" ({fact['unreadable'][0]})" if fact.get("unreadable") else "")
    return ""


def _may_wait(view: View, name: str, path: str) -> bool:
    """Whether what is missing may still come: the run or the job makes it, and no host has it yet."""
    resolved = view.resolved
    made = resolved is not None and (made_by_run(resolved, path) or name.startswith("env "))
    return made and not _anywhere(view, name)


def _anywhere(view: View, name: str) -> bool:
    return any(said["paths"].get(name, {}).get("value", {}).get("exists") for said in view.data.values())


def _same(view: View, host: Host) -> Finding | None:
    if view.resolved is None or len(view.hosts) == 1:
        return None
    differ, count = [], 0
    for name, path in paths_of(view.resolved).items():
        facts = {
            one: said["paths"][name]["value"]
            for one, said in view.data.items()
            if "value" in said["paths"].get(name, {})
        }
        facts = {one: fact for one, fact in facts.items() if fact["exists"] and "names" in fact}
        if host.name not in facts:
            continue
        count += 1
        digests = {
            one: (fact["names"], tuple(sorted(fact["sampled"].items()))) for one, fact in facts.items()
        }
        counts = Counter(digests.values())
        most = max(counts.values())
        common = [digest for digest, number in counts.items() if number == most]
        usual = digests[view.head.name] if digests.get(view.head.name) in common else common[0]
        if digests[host.name] != usual:
            other = next(one for one, digest in digests.items() if digest == usual)
            differ.append(
                f"{name}: {path} is not what it is on {other}: {_difference(facts[host.name], facts[other])}"
            )
    if differ:
        return fail("; ".join(differ[:SHOWN]), f"copy it again to {host.name}, or mount the shared one")
    return ok(f"{count} paths, by name, size and sampled content") if count else None


def _difference(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> str:
    if mine["listed"] is not None and theirs["listed"] is not None and mine["listed"] != theirs["listed"]:
        for name in sorted(mine["listed"].keys() | theirs["listed"].keys()):
            sizes = [one["listed"].get(name) for one in (mine, theirs)]
            if sizes[0] != sizes[1]:
                return f"{name or 'the file'} has {_bytes(sizes[0])}, there {_bytes(sizes[1])}"
    if mine["names"] != theirs["names"]:
        return f"{mine['files']} files of {mine['bytes']:,} bytes, there {theirs['files']} of {theirs['bytes']:,}"
    name = next(
        (name for name, digest in mine["sampled"].items() if theirs["sampled"].get(name) != digest), ""
    )
    return f"{name or 'the file'} has the same size and other content"


def _bytes(size: int | None) -> str:
    return "no such file" if size is None else f"{size:,} bytes"


def _mount(view: View, host: Host) -> Finding | None:
    """Whether paths lie on the same storage; the shared folder's canary is the proof for those below it."""
    if view.resolved is None or len(view.hosts) == 1 or host.head:
        return None
    head, mine, shared = view.data.get(view.head.name), _data(view, host), view.site.shared
    copies = []
    for name, path in paths_of(view.resolved).items():
        mounts = [said["paths"].get(name, {}).get("value", {}).get("mount") for said in (mine, head or mine)]
        if None in mounts or (shared and path.startswith(f"{shared.rstrip('/')}/")):
            continue
        kinds = [(mount["kind"], mount["source"]) for mount in mounts]
        if kinds[0] != kinds[1]:
            copies.append(f"{name} on {' '.join(kinds[0])}, on {view.head.name} on {' '.join(kinds[1])}")
    if copies:
        return warn(
            "; ".join(copies[:SHOWN]),
            "keep them on the shared folder, or take care that every copy is renewed together",
        )
    said = mine["shared"]
    mount = said.get("value") if said else None
    return ok(
        f"{shared} is {mount['kind']} {mount['source']} ({mount['device']})" if mount else "as on the head"
    )


CHECKS = (
    HostCheck("path.shared", "the shared folder, by a file that each host leaves there", _shared),
    HostCheck("path.run", "the run directory in the shared folder", _run),
    HostCheck("path.exists", "paths of the recipe and of its environment", _exists),
    HostCheck("path.same", "the same data on every host", _same),
    HostCheck("path.mount", "storage that the paths lie on", _mount),
)
