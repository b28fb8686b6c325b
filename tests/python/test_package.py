# SPDX-License-Identifier: Apache-2.0
"""The package that pip makes: where its version is from, and that it has every plugin."""

import ast
import importlib.machinery
import importlib.util
import os
import pathlib
import re
import subprocess

import backplane

SOURCE = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ["BACKPLANE_TEST_BUILD"])


def setting(name: str) -> str:
    """The text of a setting in pyproject.toml."""
    found = re.search(rf"^{re.escape(name)} = (.*)$", (SOURCE / "pyproject.toml").read_text(), re.MULTILINE)
    assert found, name
    return found[1]


def test_the_version_is_that_of_the_debian_packages() -> None:
    assert setting("input") == '"CMakeLists.txt"'
    version = re.search(setting("regex").strip("'"), (SOURCE / "CMakeLists.txt").read_text())
    assert version
    assert setting("result").strip('"').format(**version.groupdict()) == backplane.__version__

    packed = re.search(r'DEBIAN_PACKAGE_VERSION "(.*)"', (BUILD / "CPackConfig.cmake").read_text())
    assert packed
    numbers, tilde, prerelease = packed[1].partition("~")
    assert numbers + prerelease == backplane.__version__
    assert bool(tilde) == bool(prerelease)


def test_the_wheel_has_every_plugin(tmp_path: pathlib.Path) -> None:
    for component in ast.literal_eval(setting("install.components")):
        subprocess.run(["cmake", "--install", BUILD, "--prefix", tmp_path, "--component", component], check=True)
    built = {file.name for file in (BUILD / "lib/backplane/plugins").glob("backplane_*.so")}
    assert built
    assert {file.name for file in tmp_path.rglob("backplane_*.so")} == built

    loader = importlib.machinery.SourceFileLoader("wheel", str(SOURCE / "tools/wheel"))
    spec = importlib.util.spec_from_loader("wheel", loader)
    assert spec
    wheel = importlib.util.module_from_spec(spec)
    loader.exec_module(wheel)
    refused = [name for name in built if not wheel.CONTENT.fullmatch(f"backplane/lib/backplane/plugins/{name}")]
    assert not refused, f"add them to the plugins in tools/wheel: {refused}"
