"""What hosts are made of: a light base of Debian packages, or an image of ours with sshd and tools laid over it."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from ci.hosts.model import NoHostsError
from verl_musa.image.base import EPOCH, debian_command
from verl_musa.image.pins import load_pins

# A host of its own: Python as every distribution has it, sshd, and what looks at and breaks networks and disks.
PACKAGES = (
    "iproute2",
    "libfaketime",
    "nftables",
    "openssh-client",
    "openssh-server",
    "procps",
    "python3",
    "tini",
)
MAKE_LIMIT_S = 1800.0
ENGINE_LIMIT_S = 600.0

# In the light base: the files of its packages which the other image (whose packages are $1) lacks, as a tar.
_COLLECT = """\
set -eu
have=$1
for package in $(dpkg-query -W -f '${Package} '); do
  case " $have " in *" $package "*) continue;; esac
  for list in /var/lib/dpkg/info/$package.list /var/lib/dpkg/info/$package:*.list; do
    [ -f "$list" ] || continue
    while read -r path; do
      if [ ! -d "$path" ] || [ -L "$path" ]; then [ -e "$path" ] && echo "${path#/}"; fi
    done < "$list"
  done
done | sort -u | tar -C / -cf - --no-recursion -T -
"""


def install_in_ci() -> None:
    """On a CI machine what hosts need is installed; elsewhere nobody expects a test to do that."""
    programs = {"dockerd": "docker.io", "mmdebstrap": "mmdebstrap", "ssh": "openssh-client", "ip": "iproute2"}
    where = os.environ.get("PATH", "") + ":/usr/sbin:/usr/bin:/sbin:/bin"
    missing = [package for program, package in programs.items() if shutil.which(program, path=where) is None]
    apt = shutil.which("apt-get")
    if not (missing and apt and os.environ.get("CI") and os.geteuid() == 0):
        return
    for command in (["update", "-q"], ["install", "-y", "-q", "--no-install-recommends", *missing]):
        subprocess.run([apt, *command], check=False, timeout=MAKE_LIMIT_S, capture_output=True)


def default_cache() -> Path:
    """Where the light base is kept."""
    return Path.home() / ".cache" / "verl-musa" / "hosts"


def light_tar(cache: Path, progress: Callable[[str], None] = print) -> Path:
    """The light base as a tar, made once for each list of packages: about 20 s where the network and the disk are idle.

    Raises:
        NoHostsError: it cannot be made here.
    """
    base = load_pins("sim").base
    key = hashlib.sha256("\n".join([base.suite, base.mirror, *PACKAGES]).encode()).hexdigest()[:16]
    target = cache / f"light-{key}.tar"
    if target.is_file():
        return target
    if shutil.which("mmdebstrap") is None:
        raise NoHostsError("mmdebstrap is not installed (Debian: apt-get install mmdebstrap)")
    progress(f"making the light base of {len(PACKAGES)} Debian packages and what they need")
    cache.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_name(f"{os.getpid()}-{target.name}")
    try:
        done = subprocess.run(
            debian_command(base, list(PACKAGES), unfinished),
            capture_output=True,
            text=True,
            check=False,
            timeout=MAKE_LIMIT_S,
            env={**os.environ, "SOURCE_DATE_EPOCH": EPOCH},
        )
        if done.returncode != 0:
            raise NoHostsError(f"mmdebstrap failed: {done.stderr.strip()[-500:]}")
        unfinished.rename(target)
    finally:
        unfinished.unlink(missing_ok=True)
    return target


def light_root(cache: Path) -> Path:
    """The light base as a folder, for hosts without an engine.

    Raises:
        NoHostsError: it cannot be made here.
    """
    tar = light_tar(cache)
    target = tar.with_suffix("")
    if not target.is_dir():
        unfinished = Path(tempfile.mkdtemp(prefix="root-", dir=cache))
        unfinished.chmod(0o755)
        command = [shutil.which("tar") or "tar", "-xpf", str(tar), "-C", str(unfinished), "--exclude=./dev/*"]
        subprocess.run(command, check=True, timeout=MAKE_LIMIT_S)
        unfinished.rename(target)
    return target


def light_image(docker: Callable[..., str], cache: Path) -> str:
    """The light base in an engine; return its reference."""
    tar = light_tar(cache)
    reference = f"verl-musa-host:{tar.stem.removeprefix('light-')}"
    if not docker("images", "--quiet", reference).strip():
        docker("import", str(tar), reference, limit=ENGINE_LIMIT_S)
    return reference


def layered_image(docker: Callable[..., str], image: str, cache: Path) -> str:
    """``image`` with the light base's packages that it lacks, as a layer over it; return its reference.

    The files are those that Debian's packages put there in the light base, which is of the same release. Neither the list of packages
    nor any file of the image is touched.
    """
    light = light_image(docker, cache)
    name = docker("image", "inspect", "--format", "{{.Id}}", image).strip().removeprefix("sha256:")[:16]
    reference = f"verl-musa-host:{name}-{light.partition(':')[2][:8]}"
    if docker("images", "--quiet", reference).strip():
        return reference
    query = ["dpkg-query", "-W", "-f", "${Package} "]
    have = docker("run", "--rm", "--network", "none", "--entrypoint", query[0], image, *query[1:])
    with tempfile.TemporaryDirectory(prefix="layer-") as folder:
        context = Path(folder)
        docker("run", "--rm", "--network", "none", light, "sh", "-c", _COLLECT, "sh", have, limit=ENGINE_LIMIT_S, raw=context / "layer.tar")  # fmt: skip
        lines = [
            f"FROM {image}",
            "USER 0",
            "ADD layer.tar /",
            "RUN ldconfig && (getent passwd sshd || echo 'sshd:x:100:65534::/run/sshd:/usr/sbin/nologin' >> /etc/passwd)",
        ]
        (context / "Dockerfile").write_text("\n".join(lines) + "\n", encoding="utf-8")
        docker("build", "--network", "none", "--tag", reference, str(context), limit=ENGINE_LIMIT_S)
    return reference
