#!/bin/sh
# The pinned packages, each by its hash, none resolved. --ignore-installed: the tools on PYTHONPATH must not count as installed.
set -eu
install() {
  PYTHONPATH="$(echo /tools/lib/python3*/site-packages)" /opt/verl-musa/bin/python -m pip install --no-index --no-deps --no-compile \
    --find-links /wheels/layers --require-hashes --no-build-isolation --quiet --disable-pip-version-check --root-user-action ignore --no-warn-script-location "$@"
}
for lock in /locks/main/*.txt; do
  echo "layer $(basename "$lock" .txt)"
  install --ignore-installed -r "$lock"
done
for lock in /locks/aside/*.txt; do
  [ -e "$lock" ] || continue
  echo "layer $(basename "$lock" .txt), aside"
  install --target "/opt/verl-musa/aside/$(basename "$lock" .txt)" -r "$lock"
done
