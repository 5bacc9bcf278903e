#!/bin/sh
# The packages of this repository, last: they change most often.
set -eu
for folder in /src/main/*/; do
  sh /build/install.sh --python /opt/verl-musa/bin/python "$folder"
done
