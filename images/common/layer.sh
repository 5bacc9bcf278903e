#!/bin/sh
# The pinned packages, each by its hash.
set -eu
install() {
  sh /build/install.sh --python /opt/verl-musa/bin/python --find-links /wheels/layers --require-hashes "$@"
}
for lock in /locks/main/*.txt; do
  echo "layer $(basename "$lock" .txt)"
  install -r "$lock"
done
for lock in /locks/aside/*.txt; do
  [ -e "$lock" ] || continue
  echo "layer $(basename "$lock" .txt), aside"
  install --target "/opt/verl-musa/aside/$(basename "$lock" .txt)" -r "$lock"
done
