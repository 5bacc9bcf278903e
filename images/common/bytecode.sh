#!/bin/sh
# Bytecode, made once: every Ray worker starts a Python. "unchecked-hash" carries no date; one process and a fixed hash seed, since
# the order of sets and the sharing of strings would else differ between builds. Templates in wheels do not compile: that is no fault.
# bytecode.sh PYTHON FOLDER...
set -eu
python="$1"
shift
PYTHONHASHSEED=0 "$python" -m compileall -q -j 1 --invalidation-mode unchecked-hash "$@" \
  || echo "some files are no Python of this version; they have no bytecode"
