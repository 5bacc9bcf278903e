"""Hosts that need no GPU: four containers (or namespaces) with sshd, two networks and a shared folder, and faults to put into them.

python -m ci.hosts up [--image REF] [--count N] [--folder DIR]     # for people
with up(Shape(count=2)) as hosts: ...                               # for tests
"""

from ci.hosts.model import CommandError, Host, Hosts, NoHostsError, Shape
from ci.hosts.stack import SIMULATOR, with_stack
from ci.hosts.up import up

__all__ = ["SIMULATOR", "CommandError", "Host", "Hosts", "NoHostsError", "Shape", "up", "with_stack"]
