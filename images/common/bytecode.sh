#!/bin/sh
# Bytecode, made once: every Ray worker starts a Python. bytecode.sh PYTHON FOLDER...
# The same bytes each time: "unchecked-hash" carries no date, a fixed hash seed settles the order of sets, and which strings of a
# file are written as shared depends on what its process compiled before, so a fixed number of processes gets fixed lists of files.
# Templates in wheels do not compile: that is no fault.
set -eu
python="$1"
shift
lists="$(mktemp -d)"
find "$@" -name '*.py' | LC_ALL=C sort | awk -v folder="$lists" '{ print > (folder "/" NR % 16) }'
find "$lists" -type f -print0 \
  | PYTHONHASHSEED=0 xargs -0 -n 1 -P "$(nproc)" "$python" -m compileall -q --invalidation-mode unchecked-hash -i \
  || echo "some files are no Python of this version; they have no bytecode"
rm -r "$lists"
