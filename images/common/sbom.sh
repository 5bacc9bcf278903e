#!/bin/sh
# What the environment consists of, as CycloneDX held against its schema, by a tool that the image does not keep.
set -eu
PYTHONPATH='' /tools/bin/cyclonedx-py environment --output-reproducible --output-format JSON --spec-version 1.6 \
  --validate --output-file /opt/verl-musa/share/verl-musa/sbom.cdx.json /opt/verl-musa/bin/python
