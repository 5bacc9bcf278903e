"""Keys and files by which hosts are reached: made anew for each set of hosts, never taken from the user's own."""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ci.hosts.model import SHARED, SITE_INSIDE, Host, Network, NoHostsError, Shape, Which

INIT = """\
#!/bin/sh
# First process of a host below its init: sshd, and nothing that ends.
mkdir -p /run/sshd
rm -f /run/sshd.pid /run/nologin
/usr/sbin/sshd
exec sleep infinity
"""

SSHD = """\
Port 22
HostKey /etc/ssh/hosts_key
AuthorizedKeysFile /etc/ssh/hosts_authorized
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
PermitUserEnvironment yes
UseDNS no
MaxStartups 100:30:200
MaxSessions 100
PidFile /run/sshd.pid
"""


@dataclass(frozen=True)
class Keys:
    """The user's key and the hosts' keys, in ``folder``; hosts' public keys by name."""

    folder: Path
    hosts: dict[str, str]


def make_keys(folder: Path, names: Sequence[str]) -> Keys:
    """Make the user's key ``id_ed25519`` and a key of each host.

    Raises:
        NoHostsError: no ssh-keygen is installed.
    """
    program = shutil.which("ssh-keygen")
    if program is None:
        raise NoHostsError("ssh-keygen is not installed (Debian: apt-get install openssh-client)")
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    for name in ("id_ed25519", *(f"key-{host}" for host in names)):
        command = [program, "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(folder / name)]
        subprocess.run(command, check=True, timeout=60, stdin=subprocess.DEVNULL, capture_output=True)
    return Keys(folder, {name: (folder / f"key-{name}.pub").read_text().strip() for name in names})


def host_files(keys: Keys, name: str, hosts: Sequence[Host], shape: Shape) -> dict[str, tuple[str, int]]:
    """The files to put into a host before it starts: text and mode by path without the first slash."""
    user = keys.folder / "id_ed25519"
    return {
        "etc/ssh/hosts_key": ((keys.folder / f"key-{name}").read_text(), 0o600),
        "etc/ssh/hosts_authorized": (user.with_suffix(".pub").read_text(), 0o600),
        "etc/ssh/sshd_config": (SSHD, 0o644),
        "usr/local/sbin/hosts-init": (INIT, 0o755),
        "root/.ssh/id_ed25519": (user.read_text(), 0o600),
        "root/.ssh/known_hosts": (known_hosts(keys, hosts), 0o600),
        "root/.ssh/environment": ("".join(f"{key}={value}\n" for key, value in shape.environment), 0o600),
    }


@dataclass(frozen=True)
class Plan:
    """What a backend is to bring up.

    Attributes:
        shape: how.
        image: reference in the engine, or the folder of a root file system.
        hosts: which.
        networks: the two.
        keys: of the user and the hosts.
        shared: the folder of this machine behind ``/mnt/shared``.
        python: Python with verl-musa in the hosts, if there is one.
    """

    shape: Shape
    image: str
    hosts: tuple[Host, ...]
    networks: dict[Which, Network]
    keys: Keys
    shared: Path
    python: Path | None = None

    def files(self, host: Host) -> bytes:
        """What a host gets before it starts, as a tar."""
        site = site_text(self.hosts, self.networks, python=self.python)
        known = host_files(self.keys, host.name, self.hosts, self.shape)
        return as_tar({**known, SITE_INSIDE.lstrip("/"): (site, 0o644)})


def as_tar(files: dict[str, tuple[str, int]]) -> bytes:
    """Those files as a tar of root's."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        folder = tarfile.TarInfo("root/.ssh")
        folder.type, folder.mode = tarfile.DIRTYPE, 0o700
        tar.addfile(folder)
        for path, (text, mode) in files.items():
            entry = tarfile.TarInfo(path)
            data = text.encode()
            entry.size, entry.mode = len(data), mode
            tar.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


def known_hosts(keys: Keys, hosts: Sequence[Host]) -> str:
    """The hosts' keys under all their names and addresses."""
    lines = []
    for host in hosts:
        names = (host.name, host.management, host.training, host.management6, host.training6)
        lines.append(f"{','.join(names)} {keys.hosts[host.name]}\n")
    return "".join(lines)


def names_of(hosts: Sequence[Host]) -> list[tuple[str, str]]:
    """What is in each host's ``/etc/hosts``: name and address."""
    return [(host.name, host.management) for host in hosts] + [
        (f"{host.name}-training", host.training) for host in hosts
    ]


def write_login(
    keys: Keys, hosts: Sequence[Host], networks: dict[Which, Network], python: Path | None
) -> None:
    """Write ``ssh_config``, ``known_hosts``, ``hostfile`` and ``site.yaml`` for commands of this machine."""
    folder = keys.folder
    (folder / "known_hosts").write_text(known_hosts(keys, hosts), encoding="utf-8")
    blocks = [f"Host {host.name}\n  HostName {host.management}\n" for host in hosts]
    everywhere = f"""\
Host *
  User root
  IdentityFile {folder / "id_ed25519"}
  IdentitiesOnly yes
  UserKnownHostsFile {folder / "known_hosts"}
  GlobalKnownHostsFile /dev/null
  StrictHostKeyChecking yes
  BatchMode yes
  LogLevel ERROR
"""
    (folder / "ssh_config").write_text("".join([*blocks, everywhere]), encoding="utf-8")
    (folder / "hostfile").write_text("".join(f"{host.management}\n" for host in hosts), encoding="utf-8")
    text = site_text(hosts, networks, python=python, key=folder / "id_ed25519", known=folder / "known_hosts")
    (folder / "site.yaml").write_text(text, encoding="utf-8")


def site_text(
    hosts: Sequence[Host],
    networks: dict[Which, Network],
    *,
    python: Path | None = None,
    key: Path | None = None,
    known: Path | None = None,
) -> str:
    """A ``site.yaml``: for a command of this machine with ``key`` and ``known``, for one inside a host without."""
    ssh = {"user": "root", "connect_seconds": "5", "key": key, "known_hosts": known}
    entries = [
        f"  - {{name: {host.name}, address: {host.management}, training: {host.training}}}\n"
        for host in hosts
    ]
    return "".join(
        [
            "schema: 1\n",
            f"shared: {SHARED}\n",
            "hosts:\n",
            *entries,
            f"head: {hosts[0].name}\n",
            f"ssh: {{{', '.join(f'{name}: {value}' for name, value in ssh.items() if value is not None)}}}\n",
            f"networks: {{management: {networks['management'].subnet}, training: {networks['training'].subnet}}}\n",
            "" if python is None else f"python: {python}\n",
            "limits: {nofile: 4096, nproc: 4096, shm_gib: 0.1, free_gib: 1}\n",
        ]
    )
