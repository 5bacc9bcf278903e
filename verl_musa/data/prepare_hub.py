"""Files of a data set from the Hugging Face or the ModelScope hub, at one commit, with their hashes."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_musa.errors import DataError

HUBS = ("huggingface", "modelscope")
MODELSCOPE = "https://www.modelscope.cn"
MODELSCOPE_VARIABLE = "MODELSCOPE_ENDPOINT"
_COMMIT = re.compile(r"[0-9a-f]{40}")
_TIMEOUT = (15, 60)
_CHUNK = 1 << 20
_INSTEAD = "or download the file elsewhere and name it with --train or --val"

Progress = Callable[[str], None]
"""Called with one line about what is fetched."""


@dataclass(frozen=True)
class Fetched:
    """One file from a hub.

    Attributes:
        file: where it lies now.
        origin: ``HUB:OWNER/NAME@COMMIT/PATH``.
    """

    file: Path
    origin: str


@dataclass(frozen=True)
class Request:
    """What is fetched.

    Attributes:
        hub: one of :data:`HUBS`.
        repository: owner/name.
        revision: a commit, tag or branch; None: the newest state.
        files: paths in the repository.
        endpoint: another address of the hub, such as a mirror.
    """

    hub: str
    repository: str
    revision: str | None
    files: Sequence[str]
    endpoint: str | None = None

    @property
    def where(self) -> str:
        """The repository, for messages."""
        return f"{self.hub}:{self.repository}"


def fetch(request: Request, progress: Progress) -> list[Fetched]:
    """Fetch files of a data set, all of one revision.

    Raises:
        DataError: the hub cannot be reached, or has no such thing.
    """
    fetchers = {"huggingface": _huggingface, "modelscope": _modelscope}
    if request.hub not in fetchers:
        raise DataError("no such hub", found=request.hub, expected=" or ".join(HUBS))
    return fetchers[request.hub](request, progress)


def _huggingface(request: Request, progress: Progress) -> list[Fetched]:
    try:
        import huggingface_hub
    except ImportError as error:
        raise DataError(
            "huggingface-hub is not installed here",
            expected="the package, which the image brings",
            fix=f"pip install 'verl-musa[hub]', take --hub modelscope, {_INSTEAD}",
        ) from error
    repository, revision, where = request.repository, request.revision, request.where
    try:
        commit = revision
        if revision is None or not _COMMIT.fullmatch(revision):
            progress(f"asking {where} for the commit of {revision or 'its newest state'}")
            api = huggingface_hub.HfApi(endpoint=request.endpoint)
            commit = api.dataset_info(repository, revision=revision, timeout=_TIMEOUT[1]).sha
        fetched = []
        for name in request.files:
            progress(f"fetching {where}@{commit}/{name}")
            path = huggingface_hub.hf_hub_download(
                repository, name, repo_type="dataset", revision=commit, endpoint=request.endpoint
            )
            fetched.append(Fetched(Path(path), f"{where}@{commit}/{name}"))
    except (
        Exception
    ) as error:  # its own errors, httpx's and OSError: the hub is a border, and each has the same next step
        raise _unreachable(error, where) from error
    return fetched


def _unreachable(error: Exception, where: str) -> DataError:
    said = " ".join(str(error).split())[:300]
    return DataError(
        "cannot be fetched",
        where=where,
        found=f"{type(error).__name__}: {said}" if said else type(error).__name__,
        fix=f"check the name, the revision and the network (HF_ENDPOINT names a mirror), {_INSTEAD}",
    )


def _modelscope(request: Request, progress: Progress) -> list[Fetched]:
    import requests
    from requests.adapters import HTTPAdapter
    from urllib3.util import Retry

    base = (request.endpoint or os.environ.get(MODELSCOPE_VARIABLE) or MODELSCOPE).rstrip("/")
    api = f"{base}/api/v1/datasets/{request.repository}/repo"
    revision = request.revision or "master"
    try:
        with requests.Session() as session:
            retry = Retry(total=3, backoff_factor=0.5, status_forcelist=(502, 503, 504))
            for scheme in ("http://", "https://"):
                session.mount(scheme, HTTPAdapter(max_retries=retry))
            progress(f"asking {request.where} for its files at {request.revision or 'its newest state'}")
            listed = {str(entry.get("Path")): entry for entry in _tree(session, api, revision, request.where)}
            fetched = []
            for name in request.files:
                if name not in listed:
                    raise DataError(
                        f"has no file {name}",
                        where=request.where,
                        fix=f"check the name and the revision, {_INSTEAD}",
                    )
                commit = str(request.revision or listed[name].get("Revision") or revision)
                expected = str(listed[name].get("Sha256") or "")
                target = _cache() / "modelscope" / request.repository / commit / name
                found = Fetched(target, f"{request.where}@{commit}/{name}")
                if not (expected and target.is_file() and _sha256(target) == expected):
                    progress(f"fetching {found.origin}")
                    asked = {"Source": "SDK", "Revision": commit, "FilePath": name}
                    with session.get(api, params=asked, timeout=_TIMEOUT, stream=True) as answer:
                        answer.raise_for_status()
                        _store(answer, target, expected, found.origin)
                fetched.append(found)
            return fetched
    except requests.RequestException as error:
        raise _unreachable(error, request.where) from error


def _tree(session: Any, api: str, revision: str, where: str) -> Iterator[dict[str, Any]]:
    """Every file of the repository, a page at a time."""
    size, seen = 100, 0
    for page in range(1, 101):
        asked = {"Revision": revision, "Recursive": "True", "PageNumber": page, "PageSize": size}
        answer = session.get(f"{api}/tree", params=asked, timeout=_TIMEOUT)
        try:
            body = answer.json()
        except ValueError:
            body = {}
        data = body.get("Data") if isinstance(body, dict) else None
        if not answer.ok or not isinstance(data, dict):
            said = (isinstance(body, dict) and body.get("Message")) or answer.reason
            raise DataError(
                "cannot be fetched",
                where=where,
                found=f"HTTP {answer.status_code}: {said}",
                fix=f"check the name and the revision, {_INSTEAD}",
            )
        entries = data.get("Files") or []
        yield from entries
        seen += len(entries)
        if not entries or seen >= int(data.get("TotalCount") or 0):
            return


def _store(answer: Any, target: Path, expected: str, origin: str) -> None:
    """Write what ``answer`` streams to ``target``, whole and with the hash ``expected`` (empty: any) or not at all."""
    target.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    handle, part = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            for chunk in answer.iter_content(_CHUNK):
                stream.write(chunk)
                digest.update(chunk)
            stream.flush()
            os.fsync(stream.fileno())
        if expected and digest.hexdigest() != expected:
            raise DataError(
                "the file arrived damaged",
                where=origin,
                found=f"SHA-256 {digest.hexdigest()}",
                expected=f"SHA-256 {expected}, which the hub names",
                fix="try again",
            )
        Path(part).replace(target)
    finally:
        Path(part).unlink(missing_ok=True)


def _cache() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache).expanduser().absolute() / "verl-musa" / "downloads"


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
