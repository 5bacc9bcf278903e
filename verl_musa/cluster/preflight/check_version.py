"""Checks that all hosts hold the same: interpreter, driver, SDK, packages, patch series, image."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from verl_musa.checks import Finding, fail, ok, unknown
from verl_musa.cluster.hosts import Host
from verl_musa.cluster.preflight.view import HostCheck, MissingFactError, View

SHOWN = 6
NEEDED = frozenset({"verl", "ray", "torch", "sglang"})
_FIX = "bring the same image to every host: verl-musa image verify says what each holds"


def said_nothing(view: View, host: Host) -> bool:
    """Whether the job's Python could not be asked: version.site then says why, and nothing more is to be learnt."""
    return "missing" in view.parts[host.name].get("site", {}).get("value", {"missing": "no answer"})


def _python_there(view: View, host: Host) -> Finding:
    found = view.part(host, "site")
    if "missing" in found:
        return fail(found["missing"], "correct `python` (and `container`) in the site")
    if "own_error" in found:
        return fail(
            f"verl-musa cannot be used by {found['executable']}: {found['own_error']}",
            "install verl-musa there, as in the image",
        )
    return ok(found["executable"])


def _own(name: str) -> Callable[[Mapping[str, Any]], str | None]:
    return lambda found: None if "own" not in found else str(found["own"][name])


def _fact(name: str) -> Callable[[Mapping[str, Any]], str | None]:
    def read(found: Mapping[str, Any]) -> str | None:
        value = found.get("own", {}).get("env", {}).get("versions", {}).get(name, {}).get("value")
        return None if value is None else str(value)

    return read


def _package(name: str) -> Callable[[Mapping[str, Any]], str | None]:
    return lambda found: found["packages"].get(name)


def _image(found: Mapping[str, Any]) -> str:
    return f"{found['image']['kind']} sha256:{found['image']['sha256'][:16]}"


def _equal(
    view: View, host: Host, read: Callable[[Mapping[str, Any]], str | None]
) -> tuple[str | None, str | None, str]:
    """The host's value, the value of most hosts (of the head, where they are as many) and who has what."""
    own = read(view.part(host, "site"))
    values = {one.name: read(found) for one, found in view.others("site") if "missing" not in found}
    counts = Counter(values.values())
    most = max(counts.values())
    common = [value for value, count in counts.items() if count == most]
    head = values.get(view.head.name)
    usual = head if head in common else common[0]
    who = "; ".join(
        f"{value or 'not there'}: {', '.join(name for name, has in values.items() if has == value)}"
        for value in counts
    )
    return own, usual, who


def _same(
    read: Callable[[Mapping[str, Any]], str | None], *, needed: bool = False, real: bool = False
) -> Callable[[View, Host], Finding | None]:
    """A check that all hosts have one value; ``needed``: and have it at all; ``real``: where devices are real."""

    def check(view: View, host: Host) -> Finding | None:
        if said_nothing(view, host):
            return None
        own, usual, who = _equal(view, host, read)
        if own != usual:
            return fail(f"{own or 'not there'}, but {usual or 'not there'} on most ({who})", _FIX)
        if len({read(found) for _, found in view.others("site") if "missing" not in found}) > 1:
            return ok(own or "not there")  # the odd ones out have the failure
        if own is None and needed and view.resolved is not None:
            return fail("not installed on any host", _FIX)
        if own is None and real:
            return None if view.simulated else unknown("no host says", "see `verl-musa env` on the host")
        return ok(own or "not installed on any host")

    return check


def _packages(view: View, host: Host) -> Finding | None:
    """The packages that no check of their own looks at."""
    if said_nothing(view, host):
        return None
    mine: Mapping[str, str] = view.part(host, "site")["packages"]
    reference = view.part(view.head, "site")
    if "missing" in reference:
        raise MissingFactError("the head's packages are not known")
    theirs: Mapping[str, str] = reference["packages"]
    changes = [
        f"{name} {theirs.get(name, 'not there')} -> {mine.get(name, 'not there')}"
        for name in sorted(mine.keys() | theirs.keys())
        if mine.get(name) != theirs.get(name)
    ]
    if changes:
        more = f" and {len(changes) - SHOWN} more" if len(changes) > SHOWN else ""
        return fail(
            f"{len(changes)} differ from {view.head.name}'s: {', '.join(changes[:SHOWN])}{more}", _FIX
        )
    return ok(f"{len(mine)} packages as on {view.head.name}")


def _megatron(found: Mapping[str, Any]) -> str | None:
    version = found["packages"].get("megatron-core") or found.get("own", {}).get("extras", {}).get(
        "megatron-core"
    )
    return None if version is None else str(version)


CHECKS = (
    HostCheck("version.site", "the job's Python, with verl-musa", _python_there),
    HostCheck("version.python", "Python of the job", _same(lambda found: found["python"])),
    HostCheck("version.driver", "driver", _same(_fact("driver"), real=True)),
    HostCheck("version.sdk", "MUSA SDK", _same(_fact("musa-sdk"), real=True)),
    HostCheck("version.mccl", "MCCL", _same(_fact("mccl"), real=True)),
    HostCheck("version.torch", "torch", _same(_package("torch"), needed=True)),
    HostCheck("version.torch-musa", "torch_musa", _same(_fact("torch_musa"), real=True)),
    HostCheck("version.verl", "verl", _same(_package("verl"), needed=True)),
    HostCheck("version.megatron", "Megatron-Core", _same(_megatron)),
    HostCheck("version.sglang", "SGLang", _same(_package("sglang"))),
    HostCheck("version.ray", "Ray", _same(_package("ray"), needed=True)),
    HostCheck("version.verl-musa", "verl-musa, by its sources", _same(_own("sources"))),
    HostCheck("version.patches", "patch series", _same(_own("series"))),
    HostCheck("version.image", "image or environment", _same(_image)),
    HostCheck("version.packages", "all other packages", _packages),
)
