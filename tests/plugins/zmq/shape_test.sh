#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The plugin exports one symbol, does not link Backplane and has no unique symbols.
set -eu
exports=$(nm -D --defined-only "$1" | awk '{print $3}' | sed 's/@.*//')
if [ "$exports" != bp_plugin_v1 ]; then
  echo "exports: $exports"
  exit 1
fi
if readelf -d "$1" | grep NEEDED | grep -i backplane; then
  echo "the plugin links Backplane"
  exit 1
fi
if nm -D "$1" | grep -w u; then
  echo "the plugin has unique symbols"
  exit 1
fi
