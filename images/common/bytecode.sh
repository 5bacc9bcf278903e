#!/bin/sh
# Bytecode, made once: every Ray worker starts a Python. "unchecked-hash" carries no date; one process and a fixed hash seed, since
# the order of sets and the sharing of strings would else differ between builds. Templates in wheels do not compile: that is no fault.
set -eu
PYTHONHASHSEED=0 /opt/verl-musa/bin/python -m compileall -q -j 1 --invalidation-mode unchecked-hash /opt/verl-musa/lib /opt/verl-musa/aside \
  || echo "some files are no Python of this version; they have no bytecode"
