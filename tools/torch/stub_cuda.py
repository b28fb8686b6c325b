# SPDX-License-Identifier: Apache-2.0
"""Makes a CUDA build of torch importable without CUDA's libraries: python3 stub_cuda.py SITE-PACKAGES

torch's libraries are linked with 3 GB of CUDA's, which a program for CPUs never calls. This builds a stub of each one
in torch/lib. Each function of a stub returns 100, cudaErrorNoDevice.
"""

from __future__ import annotations

import collections
import pathlib
import re
import subprocess
import sys
import tempfile

_OF_CUDA = re.compile(r"(cu|nccl|nv|CU|Nv)\w+$")
_LIBRARY_OF_CUDA = re.compile(r"lib(cu(?!rl|ps)|nccl|nv)")
_NEEDED = re.compile(r"\(NEEDED\).*\[(.+)\]")
_VERSION_FILE = re.compile(r"Version: \d+ +File: (\S+)")
_VERSION_NAME = re.compile(r"Name: (\S+) +Flags")
_SYMBOL = re.compile(r" +\d+: [0-9a-f]+ +\d+ \w+ +(?:GLOBAL|WEAK) +\w+ +(\w+) (\S+)")


def read(library: pathlib.Path, *options: str) -> str:
    command = ["readelf", "-W", *options, str(library)]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def missing_symbols(folder: pathlib.Path) -> dict[str, dict[str, set[str]]]:
    """The symbols that no library defines, by the library and the symbol version that torch expects them in.

    CUDA's libraries of the machine, of which some may be missing, do not count.
    """
    present = {path.name for path in folder.iterdir()}
    missing: dict[str, dict[str, set[str]]] = collections.defaultdict(lambda: collections.defaultdict(set))
    unversioned: set[str] = set()
    defined: set[str] = set()
    for library in folder.glob("*.so*"):
        for name in _NEEDED.findall(read(library, "-d")):
            if _LIBRARY_OF_CUDA.match(name) and name not in present:
                missing[name][""] = set()
        files: dict[str, str] = {}  # of each symbol version
        file = ""
        for line in read(library, "-V").splitlines():
            if found := _VERSION_FILE.search(line):
                file = found[1]
            elif file and (found := _VERSION_NAME.search(line)):
                files[found[1]] = file
        for section, symbol in _SYMBOL.findall(read(library, "--dyn-syms")):
            name, _, version = symbol.partition("@")
            if section != "UND":
                defined.add(name)
            elif version and files.get(version) in missing:
                missing[files[version]][version].add(name)
            elif not version and _OF_CUDA.match(name):
                unversioned.add(name)
    for versions in missing.values():  # nothing tells which of the libraries has them
        versions[""] |= unversioned - defined
    return missing


def build(folder: pathlib.Path, soname: str, versions: dict[str, set[str]]) -> None:
    source: list[str] = []
    script: list[str] = []
    for number, (version, names) in enumerate(sorted(versions.items())):
        for name in sorted(names):
            # A name may have several versions: each has a function of its own.
            source.append(f"int stub_{number}_{name}(void) {{ return 100; }}")
            if version:
                source.append(f'__asm__(".symver stub_{number}_{name},{name}@@@{version}");')
            else:
                source.append(f'int {name}(void) __attribute__((alias("stub_{number}_{name}")));')
        if version:
            script.append(f"{version} {{ }};")
    with tempfile.TemporaryDirectory() as place:
        code, map_file = pathlib.Path(place, "stub.c"), pathlib.Path(place, "stub.map")
        code.write_text("\n".join(source) + "\n")
        map_file.write_text("\n".join(script) + "\n")
        options = [f"-Wl,--version-script={map_file}"] if script else []
        command = ["gcc", "-shared", "-fPIC", "-w", "-O0", f"-Wl,-soname,{soname}", *options, str(code)]
        subprocess.run([*command, "-o", str(folder / soname)], check=True)


def main() -> None:
    folder = pathlib.Path(sys.argv[1], "torch", "lib")
    missing = missing_symbols(folder)
    for soname, versions in sorted(missing.items()):
        build(folder, soname, versions)
    print(f"{len(missing)} stub libraries in {folder}")


if __name__ == "__main__":
    main()
