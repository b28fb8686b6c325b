# SPDX-License-Identifier: Apache-2.0
"""The backend c10d, over torch's gloo: in programs with and without a Python of their own, and as `check` tests it."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import textwrap
from typing import Any

from support import COMMAND, run_ranks

KNOWN = pathlib.Path(__file__).parents[1] / "plugins" / "c10d" / "gloo.txt"
CHECK_LIMIT = 400.0  # s; each rank of each case imports torch


def check_torch(*filters: str) -> dict[str, Any]:
    """The verdict of each case that the filters name."""
    arguments = [COMMAND, "check", "--torch", "gloo", "-n", "2", "--timeout-scale", "10", "--format", "json"]
    arguments += ["--expect-failures", str(KNOWN)]
    arguments += ["--option", f"python={sys.executable}"]
    for name in filters:
        arguments += ["--filter", name]
    done = subprocess.run(
        arguments, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=CHECK_LIMIT, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    return {f"{case['group']}.{case['name']}": case for case in report["results"]}


def test_a_python_program_uses_its_own_interpreter() -> None:
    output = run_ranks(
        2,
        "c10d?backend=gloo",
        """
        import numpy
        import backplane

        with backplane.init_process_group() as group:
            total = numpy.array([1.0, group.rank()])
            backplane.all_reduce(total)
            assert total.tolist() == [2.0, 1.0], total
            root = numpy.full(3, group.rank())
            backplane.broadcast(root, 1)
            assert root.tolist() == [1, 1, 1], root
            peer = 1 - group.rank()
            message = numpy.zeros(100_000)
            group.sendrecv(numpy.full(100_000, group.rank() + 1.0), peer, message, peer)
            assert (message == peer + 1).all()
            assert group.all_gather_object(group.backend) == ["c10d", "c10d"]
            backplane.barrier()
            print("passed")
        """,
    )
    assert output.count("passed") == 2, output


def test_a_program_may_end_with_an_open_group() -> None:
    output = run_ranks(
        2,
        "c10d?backend=gloo",
        """
        import numpy
        import backplane

        group = backplane.init_process_group()
        backplane.all_reduce(numpy.zeros(3))
        print("passed", flush=True)
        """,
    )
    assert output.count("passed") == 2, output


def test_an_unknown_backend_of_torch_is_refused() -> None:
    output = run_ranks(1, "c10d?backend=acme", "import backplane; backplane.init_process_group()", code=1)
    assert "torch has no backend acme" in output, output


def test_ctrl_c_ends_a_start_that_waits_for_a_peer(tmp_path: pathlib.Path) -> None:
    """Rank 1 reaches torch's gloo only after a minute. Rank 0 interrupts itself while it waits there."""
    (tmp_path / "late.py").write_text(
        textwrap.dedent(
            """
            import os, signal, threading, time

            if os.environ["RANK"] == "1":
                time.sleep(60)
            else:
                threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT)).start()
            """
        )
    )
    output = run_ranks(
        2,
        "c10d?backend=gloo&module=late",
        f"""
        import os
        import sys
        import time

        import torch.distributed

        sys.path.insert(0, {str(tmp_path)!r})
        import backplane

        begin = time.monotonic()
        try:
            backplane.init_process_group(timeout=100)
        except KeyboardInterrupt:
            assert os.environ["RANK"] == "0"
        except backplane.CancelledError as error:
            assert os.environ["RANK"] == "1" and error.peer_rank == 0, error
        assert time.monotonic() < begin + 30
        print("passed", flush=True)
        os._exit(0)  # without the minute
        """,
    )
    assert output.count("passed") == 2, output


def test_a_second_name_of_the_backend_is_refused() -> None:
    arguments = [COMMAND, "check", "--torch", "gloo", "--option", "backend=ucc"]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=CHECK_LIMIT, check=False)
    assert done.returncode == 2, done
    assert "--torch gloo and --option backend=ucc both name the backend of torch" in done.stderr, done.stderr


def test_a_program_that_is_no_python_is_refused() -> None:
    environment = {**os.environ, "BACKPLANE_PYTHON": "/bin/sh"}
    arguments = [COMMAND, "list", "--probe"]
    done = subprocess.run(arguments, env=environment, capture_output=True, text=True, timeout=CHECK_LIMIT, check=True)
    assert "/bin/sh is no Python 3 with a shared library" in done.stdout, done.stdout


def test_torch_fails_the_cases_that_are_listed() -> None:
    passing = ("collectives.all-reduce", "abort.blocked-collective", "death.sigkill-mid-collective", "process.manners")
    failing = ("collectives.special-values", "process.cloexec")
    cases = check_torch(*passing, *failing)
    verdicts = {name: case["verdict"] for name, case in cases.items()}
    assert verdicts == {**dict.fromkeys(passing, "passed"), **dict.fromkeys(failing, "failed")}, cases
