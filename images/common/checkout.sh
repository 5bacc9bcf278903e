#!/bin/sh
# The packages of this repository, last: they change most often.
set -eu
for folder in /src/main/*/; do
  PYTHONPATH="$(echo /tools/lib/python3*/site-packages)" /opt/verl-musa/bin/python -m pip install --ignore-installed --no-index --no-deps \
    --no-build-isolation --no-compile --quiet --disable-pip-version-check --root-user-action ignore --no-warn-script-location "$folder"
done
