"""What the Python environment at hand consists of: each distribution with a hash of its files, wherever they lie."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

import verl_musa
from verl_musa import extras
from verl_musa.image.tree import HashCache, Listing, content_hash, list_folder
from verl_musa.patching.loading import patches_root

TOOLS = frozenset({"pip", "setuptools", "uv", "wheel"})
"""What installs packages and is pinned by nobody."""

BELOW = "base"
"""Place of what this environment is laid over; a second such folder is ``base1``."""

UNOWNED = "(no package)"
"""Owner of files that no distribution lists."""

_WRITTEN_BY_INSTALLERS = frozenset({"RECORD", "INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json"})
_EDITABLE = ("_editable_impl_", "__editable__", "_virtualenv")
_OWN_SOURCES = {"verl-musa": ("verl_musa",), "musa-sim": ("torch_musa",), "sgl-kernel-stub": ("sgl_kernel",)}


@dataclass(frozen=True)
class Distribution:
    """One installed distribution.

    Attributes:
        name: canonical name.
        version: its version.
        place: ``main``, ``base`` (what the environment is laid over), or the name of the extra that it lies aside for.
        sha256: hash over its files.
    """

    name: str
    version: str
    place: str
    sha256: str


@dataclass(frozen=True)
class Environment:
    """All of them.

    Attributes:
        distributions: by name; those aside are called ``NAME@EXTRA``.
        files: every file, by ``PLACE/PATH``.
        owners: which distribution each belongs to.
        roots: the folder of each place.
    """

    distributions: Mapping[str, Distribution]
    files: Listing
    owners: Mapping[str, str] = field(repr=False)
    roots: Mapping[str, str] = field(default_factory=dict)

    @property
    def sha256(self) -> str:
        """The content hash of all packages' files."""
        return content_hash(self.files)

    def closure(self, names: Iterable[str], wanted_extras: Iterable[str] = ()) -> dict[str, Distribution]:
        """The distributions ``names`` and what they require, as far as it is installed, for a job with those extras."""
        places = ["main", *wanted_extras, *(place for place in self.roots if place.startswith(BELOW))]
        known: dict[str, tuple[str, Distribution]] = {}
        for key, found in self.distributions.items():
            if found.place in places:
                known.setdefault(found.name, (key, found))
        chosen: dict[str, Distribution] = {}
        queue: list[str] = [canonicalize_name(name) for name in names]
        while queue:
            name = queue.pop()
            if name not in known or known[name][0] in chosen:
                continue
            key, one = known[name]
            chosen[key] = one
            queue += _requires(one)
        return chosen


def _is_aside(place: str) -> bool:
    return place != "main" and not place.startswith(BELOW)


def _requires(found: Distribution) -> list[str]:
    chosen: list[str] = []
    aside = (found.place,) if _is_aside(found.place) else ()
    for text in extras.distribution(found.name, aside).requires or ():
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue  # an old package's metadata; what it needs cannot be told
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            chosen.append(canonicalize_name(requirement.name))
    return chosen


def read_environment(*, cached: bool = True, hashes: HashCache | None = None) -> Environment:
    """Look at every package of this environment.

    Args:
        cached: files that look unchanged since the last time are not read again.
        hashes: what this process has hashed already, used instead of what was kept; gets what is hashed here.
    """
    cache = hashes or (HashCache(sys.prefix) if cached else None)
    files: Listing = {}
    owners: dict[str, str] = {}
    versions: dict[str, tuple[str, str, str]] = {}
    places = _places()
    for place, folder in places:
        listing = list_folder(folder, keep=_kept, cache=cache)
        owned = _owned(folder, place, versions)
        for path, entry in listing.items():
            owner = owned.get(path, UNOWNED)
            if owner.partition("@")[0] not in TOOLS:
                files[f"{place}/{path}"] = entry
                owners[f"{place}/{path}"] = owner
    _add_editable(versions, files, owners, cache)
    if cache is not None:
        cache.save()
    by_owner = _by_owner(files, owners)
    found = {
        key: Distribution(name, version, place, by_owner.get(key, content_hash({})))
        for key, (name, version, place) in sorted(versions.items())
    }
    return Environment(found, files, owners, {place: str(folder) for place, folder in places})


def _places() -> list[tuple[str, Path]]:
    """Where packages lie: this environment's, then the extras', then what it is laid over."""
    own = Path(sysconfig.get_path("purelib"))
    places = [("main", own)]
    places += [(folder.name, folder) for folder in extras.folders()]
    below = [Path(entry) for entry in sys.path if entry.endswith(("site-packages", "dist-packages"))]
    below = [folder for folder in below if folder.is_dir() and not folder.samefile(own)]
    return places + [(f"{BELOW}{number or ''}", folder) for number, folder in enumerate(below)]


def _kept(path: str) -> bool:
    name = path.rpartition("/")[2]
    if name == "__pycache__" or path in {"bin", "share"} or name.startswith(_EDITABLE):
        return False
    if "_prebuilt" in path.split("/"):
        return False  # the simulator's library, compiled for this machine; its sources count
    folder = path.split("/")[-2] if "/" in path else ""
    return not (folder.endswith(".dist-info") and name in _WRITTEN_BY_INSTALLERS)


def _owned(folder: Path, place: str, versions: dict[str, tuple[str, str, str]]) -> dict[str, str]:
    """Path -> key of the distribution that lists it; ``versions`` is filled on the way."""
    owned: dict[str, str] = {}
    for one in metadata.distributions(path=[str(folder)]):
        name = str(canonicalize_name(one.metadata["Name"]))
        if name in TOOLS:
            key: str = name
        else:
            key = f"{name}@{place}" if _is_aside(place) else name
            if key in versions:
                continue  # what lies in the environment hides what lies below it
            versions[key] = (name, one.version, place)
        for line in (one.read_text("RECORD") or "").splitlines():
            owned[line.rsplit(",", 2)[0].strip('"')] = key
    return owned


def _add_editable(
    versions: Mapping[str, tuple[str, str, str]],
    files: Listing,
    owners: dict[str, str],
    cache: HashCache | None,
) -> None:
    """Packages of this repository that are used from the checkout count as if they were installed."""
    for key, modules in _OWN_SOURCES.items():
        if key not in versions or not _is_editable(key):
            continue
        for module in modules:
            prefix = f"main/{module}/"
            for path, entry in _module_files(module, cache).items():
                files[prefix + path] = entry
                owners[prefix + path] = key


def _is_editable(name: str) -> bool:
    """Whether a distribution is used from where its sources lie (PEP 610)."""
    stated = json.loads(metadata.distribution(name).read_text("direct_url.json") or "{}")
    return bool(stated.get("dir_info", {}).get("editable"))


def _module_files(module: str, cache: HashCache | None) -> Listing:
    if module == "verl_musa":
        listing = list_folder(Path(verl_musa.__file__).parent, keep=_kept, cache=cache)
        patches = list_folder(patches_root(), keep=_kept, cache=cache)
        return {**listing, **{f"_patches/{path}": entry for path, entry in patches.items()}}
    spec = importlib.util.find_spec(module)
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    listing = list_folder(Path(folders[0]), keep=_kept, cache=cache) if folders else {}
    sources = Path(folders[0]).parent / "csrc" if folders else Path()
    if module == "torch_musa" and sources.is_dir():
        listing |= {
            f"_csrc/{path}": entry for path, entry in list_folder(sources, keep=_kept, cache=cache).items()
        }
    return listing


def _by_owner(files: Listing, owners: Mapping[str, str]) -> dict[str, str]:
    grouped: dict[str, Listing] = {}
    for path, entry in files.items():
        grouped.setdefault(owners[path], {})[path.partition("/")[2]] = entry
    return {key: content_hash(listing) for key, listing in grouped.items()}


def packages_hash(distributions: Mapping[str, Distribution]) -> str:
    """One hash over a selection of distributions."""
    lines = [f"{key}=={found.version} {found.sha256}\n" for key, found in sorted(distributions.items())]
    return hashlib.sha256("".join(lines).encode()).hexdigest()
