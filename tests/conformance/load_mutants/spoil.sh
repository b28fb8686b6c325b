#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# spoil.sh PLUGIN EXECUTABLE FOLDER: files that are no plugin, or no longer, each under the name of the case that must
# catch it.
set -eu
plugin=$1
executable=$2
folder=$3

# A copy with bytes (octal, as printf has them) put in at an offset.
patched() {
  cp "$plugin" "$folder/$1"
  printf "$3" | dd of="$folder/$1" bs=1 seek="$2" conv=notrunc status=none
}

name=load.well-formed
: > "$folder/$name.so"
echo 'This is no plugin.' > "$folder/$name-2.so"
head -c 4 "$plugin" > "$folder/$name-3.so"                              # no more than the magic
head -c 40 "$plugin" > "$folder/$name-4.so"                             # within the ELF header
head -c $(($(wc -c < "$plugin") / 4)) "$plugin" > "$folder/$name-5.so" # within a segment
patched $name-6.so 4 '\001'                                             # EI_CLASS: 32-bit
patched $name-7.so 5 '\002'                                             # EI_DATA: big-endian
patched $name-8.so 18 '\026\000'                                        # e_machine: S/390
patched $name-9.so 16 '\002\000'                                        # e_type: ET_EXEC
cp "$executable" "$folder/$name-10.so"                                  # ET_DYN, and yet a program
patched $name-11.so 32 '\000\000\000\020'                               # e_phoff: far away
patched $name-12.so 56 '\000\000'                                       # e_phnum: none
