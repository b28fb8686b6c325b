#!/bin/sh
# exports.sh PLUGIN: it exports bp_plugin_v1 and no unique symbols, and needs no library of Backplane.
set -eu
exported=$(nm -D --defined-only "$1" | awk '{print $3}')
if [ "$exported" != bp_plugin_v1 ]; then
  echo "exported: $exported"
  exit 1
fi
if nm "$1" | awk '$2 == "u"' | grep .; then
  echo "unique symbols forbid unloading"
  exit 1
fi
if readelf -d "$1" | grep NEEDED | grep -i backplane; then
  echo "a plugin must not need libbackplane"
  exit 1
fi
