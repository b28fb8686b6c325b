# SPDX-License-Identifier: Apache-2.0
"""Runs torch's own distributed_test.py, which its wheels contain, over backends: run.py [BACKEND...] [options]

BACKEND is gloo, torch's own; backplane:PLUGIN, such as backplane:shm; or renamed:PLUGIN, the same in a copy of the
tests in which "backplane" replaces the name "gloo", since many tests run for one name only. The default is gloo,
backplane:shm and renamed:shm. Prints what passed, failed and was skipped. Exits with 1 if a test failed that
expected.txt, beside this file, does not list. torch's tests need the package expecttest.

The same processes run all tests. If a test crashes or hangs, it has failed, and new ones run the rest.
"""

from __future__ import annotations

import argparse
import collections
import importlib.metadata
import importlib.util
import os
import pathlib
import subprocess
import sys
import tempfile
import time

from backplane._ports import free_port

HERE = pathlib.Path(__file__).parent
TEST_LIMIT = 120.0  # s; of one test, on a machine with other work
GROUP_LIMIT = 30.0  # s; of one operation, unless the test asks for less
SEED = 1234  # torch's own default
Results = dict[str, tuple[str, str]]  # by test: "passed", "failed" or "skipped", and the reason


def expected_differences() -> dict[str, str]:
    """By test, the reason; of the lines that hold for this version of torch."""
    version = tuple(int(number) for number in importlib.metadata.version("torch").split(".")[:2])
    found = {}
    for line in (HERE / "expected.txt").read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        name, reason = line.split(maxsplit=1)
        if reason.startswith("<"):
            before, reason = reason[1:].split(maxsplit=1)
            if version >= tuple(int(number) for number in before.split(".")):
                continue
        found[name] = reason
    return found


# ---- A rank


class Rank:
    """Runs the tests and writes a line for each that ends to `folder`/results-RANK."""

    def __init__(self, source: str, folder: pathlib.Path, rank: int, size: int, is_renamed: bool) -> None:
        import torch.distributed as dist
        from torch.testing._internal import common_distributed

        self.dist, self.folder, self.rank, self.size = dist, folder, rank, size
        self.has_started = False
        name = os.environ["BACKEND"]
        if name == "backplane":
            importlib.import_module("backplane.torch")
        if is_renamed:
            for feature in ("ddp", "subgroup"):
                common_distributed.DistTestCases.backend_feature[feature].add(name)
        self.skips = common_distributed.TEST_SKIPS
        self.skip_codes = {skip.exit_code for skip in self.skips.values()}
        spec = importlib.util.spec_from_file_location("upstream_distributed_test", source)
        assert spec is not None and spec.loader is not None
        self.module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = self.module
        spec.loader.exec_module(self.module)
        self.tests = type("Tests", (self.module.TestDistBackend, self.module.DistributedTest._DistTestBase), {})
        self.store = dist.FileStore(str(folder / f"control-{os.environ['UPSTREAM_ROUND']}"), size)

    def names(self) -> list[str]:
        return sorted(name for name in dir(self.tests) if name.startswith("test_"))

    def meet(self, key: str) -> None:
        self.store.add(key, 1)
        self.wait_for(key)

    def wait_for(self, key: str) -> None:
        deadline = time.monotonic() + TEST_LIMIT
        while self.store.add(key, 0) < self.size:
            if time.monotonic() > deadline:
                raise SystemExit(f"rank {self.rank}: the other ranks did not end the test within {TEST_LIMIT:g} s")
            time.sleep(0.01)

    def run(self, names: list[str]) -> None:
        with open(self.folder / f"results-{self.rank}", "a", buffering=1) as results:
            for name in names:
                place = self.folder / "tests" / name
                for part in ("barrier", "test_dir", "init_dir"):
                    (place / part).mkdir(parents=True, exist_ok=True)
                os.environ["TEMP_DIR"] = str(place)
                self.module.Barrier.barrier_id = 0
                self.meet(f"begin {name}")
                results.write(f"{name}\tbegan\t\n")
                outcome, reason = self.run_one(name, str(place / "store"))
                first = " ".join(reason.split())[:300]
                results.write(f"{name}\t{outcome}\t{first}\n")
                if outcome == "failed" and not self.has_started:
                    # After a start that only some ranks began, those of older torch number their groups differently.
                    raise SystemExit(f"rank {self.rank}: {name} ended without a group; new processes run the rest")
                self.meet(f"end {name}")

    def run_one(self, name: str, file_name: str) -> tuple[str, str]:
        import datetime
        import unittest

        from torch.testing._internal import common_utils

        limit = min(self.module.CUSTOM_PG_TIMEOUT.get(name, GROUP_LIMIT), GROUP_LIMIT)
        try:
            test = self.tests(name)
            test.rank, test.file_name = self.rank, file_name
            self.dist.init_process_group(
                os.environ["BACKEND"],
                init_method=f"file://{file_name}",
                world_size=self.size,
                rank=self.rank,
                timeout=datetime.timedelta(seconds=limit),
            )
            test._barrier(timeout=TEST_LIMIT)
            common_utils.set_rng_seed(SEED)
            try:
                getattr(test, name)()
            finally:
                self.store.add(f"ran {name}", 1)  # a rank that fails leaves at once, and its peers are told
            self.wait_for(f"ran {name}")
            return "passed", ""
        except unittest.SkipTest as skip:
            self.wait_for(f"ran {name}")
            return "skipped", str(skip)
        except SystemExit as end:
            if end.code not in self.skip_codes:
                return "failed", f"exit code {end.code}"
            self.wait_for(f"ran {name}")
            return "skipped", next(name for name, skip in self.skips.items() if skip.exit_code == end.code)
        except Exception as error:
            if os.environ.get("UPSTREAM_TRACES"):
                import traceback

                traceback.print_exc()
            return "failed", f"{type(error).__name__}: {error}"
        finally:
            self.has_started = self.dist.is_initialized()
            if self.has_started:
                self.dist.destroy_process_group()


# ---- The runner


def run_ranks(
    source: str, folder: pathlib.Path, size: int, names: list[str], round_number: int, mode: list[str]
) -> None:
    """Returns when all tests have run, or one has crashed or hung."""
    environment = {**os.environ, "UPSTREAM_ROUND": str(round_number)}
    (folder / "names").write_text("\n".join(names))
    log = (folder / "log").open("a")
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, "--rank", str(rank), "--source", source, "--folder", str(folder), *mode],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        for rank in range(size)
    ]
    try:
        changed, written = time.monotonic(), -1
        while any(rank.poll() is None for rank in ranks) and time.monotonic() < changed + 2 * TEST_LIMIT:
            now = sum(
                (folder / f"results-{i}").stat().st_size for i in range(size) if (folder / f"results-{i}").exists()
            )
            if now != written:
                changed, written = time.monotonic(), now
            if any(rank.poll() not in (None, 0) for rank in ranks):
                break
            time.sleep(0.2)
    finally:
        for rank in ranks:
            rank.kill()  # nothing if it has ended
            rank.wait()
        log.close()


def outcomes(folder: pathlib.Path, size: int) -> Results:
    of_ranks: dict[str, list[tuple[str, str]]] = collections.defaultdict(list)
    for rank in range(size):
        path = folder / f"results-{rank}"
        found: Results = {}
        for line in path.read_text().splitlines() if path.exists() else []:
            name, outcome, reason = line.split("\t", 2)
            found[name] = (outcome, reason)
        for name, one in found.items():
            of_ranks[name].append(one)
    results: Results = {}
    for name, ends in of_ranks.items():
        failed = [reason for outcome, reason in ends if outcome == "failed"]
        skipped = [reason for outcome, reason in ends if outcome == "skipped"]
        if failed:
            results[name] = ("failed", failed[0])
        elif any(outcome == "began" for outcome, _ in ends) or len(ends) < size:
            results[name] = ("failed", "it crashed or did not end")
        else:
            results[name] = ("skipped", skipped[0]) if len(skipped) == size else ("passed", "")
    return results


def run(backend: str, size: int, chosen: list[str]) -> Results:
    kind, _, plugin = backend.partition(":")
    name = "gloo" if kind == "gloo" else "backplane"
    os.environ.update(BACKEND=name, WORLD_SIZE=str(size), INIT_METHOD="env://", MASTER_ADDR="127.0.0.1")
    os.environ["MASTER_PORT"] = str(free_port())  # used by few tests: other groups meet in files
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if plugin:
        os.environ["BACKPLANE_BACKEND"] = plugin
    spec = importlib.util.find_spec("torch")
    assert spec is not None and spec.origin is not None
    source = pathlib.Path(spec.origin).parent / "testing/_internal/distributed/distributed_test.py"
    with tempfile.TemporaryDirectory() as place:
        folder = pathlib.Path(place)
        if kind == "renamed":
            copy = folder / "distributed_test.py"
            copy.write_text(source.read_text().replace('"gloo"', f'"{name}"'))
            source = copy
        os.environ["TEMP_DIR"] = place
        lister = [sys.executable, __file__, "--list", "--source", str(source), "--folder", place]
        listed = subprocess.run(
            lister, env={**os.environ, "UPSTREAM_ROUND": "list"}, stdout=subprocess.PIPE, text=True, check=False
        )
        if listed.returncode != 0:
            raise SystemExit(f"run.py: {sys.executable} cannot import {source}; the error is above")
        names = listed.stdout.split()
        left = [each for each in names if not chosen or any(part in each for part in chosen)]
        results: Results = {}
        mode = ["--is-renamed"] if kind == "renamed" else []
        round_number = 0
        while left:
            run_ranks(str(source), folder, size, left, round_number, mode)
            results = outcomes(folder, size)
            if not any(each in results for each in left):
                print((folder / "log").read_text()[-4000:], file=sys.stderr)
                raise SystemExit(f"{backend}: the ranks did not start a test")
            left = [each for each in left if each not in results]
            round_number += 1
        if os.environ.get("UPSTREAM_TRACES"):
            print((folder / "log").read_text())
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("backends", nargs="*", default=["gloo", "backplane:shm", "renamed:shm"], metavar="BACKEND")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--tests", action="append", default=[], help="only tests whose name contains this; repeatable")
    for hidden in ("--rank", "--source", "--folder"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    for hidden in ("--list", "--is-renamed"):
        parser.add_argument(hidden, action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.list:
        print("\n".join(Rank(options.source, pathlib.Path(options.folder), 0, 1, False).names()))
        return 0
    if options.rank is not None:
        folder = pathlib.Path(options.folder)
        rank = Rank(options.source, folder, int(options.rank), int(os.environ["WORLD_SIZE"]), options.is_renamed)
        rank.run((folder / "names").read_text().split())
        return 0
    expected = expected_differences()
    unexpected = 0
    for backend in options.backends:
        results = run(backend, options.ranks, options.tests)
        counts = collections.Counter(outcome for outcome, _ in results.values())
        for name, (outcome, reason) in sorted(results.items()):
            if outcome == "failed":
                known = expected.get(name) if backend != "gloo" else None
                unexpected += known is None and backend != "gloo"
                print(f"{backend}: {name}: {reason}" + (f" (expected: {known})" if known else ""))
        print(
            f"{backend}, {options.ranks} ranks: {counts['passed']} passed, {counts['failed']} failed, "
            f"{counts['skipped']} skipped",
            flush=True,
        )
    return 1 if unexpected else 0


if __name__ == "__main__":
    sys.exit(main())
