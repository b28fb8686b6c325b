# SPDX-License-Identifier: Apache-2.0
"""torch.distributed over gloo as a peer, measured by the method of tools/bench/measure/measure.hpp.

Arguments: RESULTS SECONDS FLAGS TEST:BYTES,... DIRECTORY. Ranks meet in the directory.
"""
import os
import sys
import time

import torch
import torch.distributed as dist

BLOCK_US = 200
MAX_OPERATIONS = 1 << 16
MIN_BLOCKS = 5
MAX_BLOCKS = 4000
WINDOW = 64
WINDOW_LIMIT = 256 << 20


def given(rank, first, count):
    """The input of a rank at the indices first to first + count."""
    return rank * 3 + (torch.arange(first, first + count) % 11).float()


class Timing:
    """One test with one size."""

    def __init__(self, test, size):
        self.test = test
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.peer, self.even, self.root = self.rank ^ 1, self.rank % 2 == 0, 0
        self.window = max(1, min(WINDOW, WINDOW_LIMIT // max(size, 1)))
        count = size // 4
        self.input = torch.zeros(count)
        self.output = torch.zeros(count)
        many = test in ("gather", "scatter", "all_gather", "all_to_all")
        self.parts = [torch.zeros(count) for _ in range(self.world)] if many else []
        self.messages = [torch.zeros(count) for _ in range(self.window)] if test == "bandwidth" else []
        self.answer = torch.zeros(1)
        self.work = 1
        self.operations = 1

    def offered(self):
        return self.test not in ("reduce_scatter", "all_to_all")  # not supported by torch's gloo

    def run(self, root):
        test = self.test
        if test == "barrier":
            dist.barrier()
        elif test == "broadcast":
            dist.broadcast(self.input, root)
        elif test == "reduce":
            dist.reduce(self.input, root)
        elif test == "all_reduce":
            dist.all_reduce(self.input)
        elif test == "gather":
            dist.gather(self.input, self.parts if self.rank == root else None, root)
        elif test == "scatter":
            dist.scatter(self.output, self.parts if self.rank == root else None, root)
        elif test == "all_gather":
            dist.all_gather(self.parts, self.input)
        elif test == "overlap":
            dist.all_reduce(self.input, async_op=True).wait()
        elif self.peer < self.world:
            self.stream() if test == "bandwidth" else self.bounce()

    def bounce(self):
        if self.even:
            dist.send(self.input, self.peer)
            dist.recv(self.output, self.peer)
        else:
            dist.recv(self.output, self.peer)
            dist.send(self.input, self.peer)

    def stream(self):
        begin = dist.isend if self.even else dist.irecv
        for work in [begin(message, self.peer) for message in self.messages]:
            work.wait()
        (dist.recv if self.even else dist.send)(self.answer, self.peer)

    def once(self):
        self.run(self.root)
        self.root = (self.root + 1) % self.world

    def both(self):
        work = dist.all_reduce(self.input, async_op=True)
        self.compute()
        work.wait()

    def compute(self):
        x = 1.0
        for _ in range(self.work):
            x = x * 0.999 + 0.001

    def wrong(self):
        """Returns an error text for the results of one operation per root; empty if they are correct."""
        found = ""
        rooted = self.test in ("broadcast", "reduce", "gather", "scatter")
        count = self.input.numel()
        for root in range(self.world if rooted else 1):
            self.input.copy_(given(self.rank, 0, count))
            for i, part in enumerate(self.parts):
                part.copy_(given(self.rank, i * count, count))
            self.run(root)
            for got, wanted in self.expected(root, count):
                if not torch.equal(got, wanted) and not found:
                    found = f"rank {self.rank} of {self.world} got wrong elements"
        return found

    def expected(self, root, count):
        total = sum((given(rank, 0, count) for rank in range(self.world)), torch.zeros(count))
        at_root = self.rank == root
        if self.test == "broadcast":
            return [(self.input, given(root, 0, count))]
        if self.test in ("all_reduce", "overlap") or (self.test == "reduce" and at_root):
            return [(self.input, total)]
        if self.test == "all_gather" or (self.test == "gather" and at_root):
            return [(part, given(rank, 0, count)) for rank, part in enumerate(self.parts)]
        if self.test == "scatter":
            return [(self.output, given(root, self.rank * count, count))]
        if self.test == "send_recv" and self.peer < self.world:
            return [(self.output, given(self.peer, 0, count))]
        return []

    def agree(self, number):
        value = torch.tensor([float(number)])
        dist.broadcast(value, 0)
        return int(value[0])

    def calibrate(self):
        self.once()
        self.once()
        while self.operations < MAX_OPERATIONS:
            shortest = min(self.timed(self.once) * self.operations for _ in range(3))
            if not self.agree(shortest < BLOCK_US):
                break
            self.operations *= 2
        if self.test == "overlap":
            own = self.timed(self.once)
            self.work = 1000
            self.work = self.agree(min(1e7, max(1, 1000 * own / self.timed(self.compute))))

    def timed(self, body):
        """Microseconds of one operation in a block."""
        begin = time.perf_counter_ns()
        for _ in range(self.operations):
            body()
        each = (time.perf_counter_ns() - begin) * 1e-3 / self.operations
        return each / {"send_recv": 2, "bandwidth": self.window}.get(self.test, 1)

    def samples(self, seconds):
        bodies = (self.both, self.once, self.compute) if self.test == "overlap" else (self.once,)
        samples = []
        begin = time.perf_counter()
        for block in range(MAX_BLOCKS):
            if not self.agree(block < MIN_BLOCKS or time.perf_counter() - begin < seconds):
                break
            for body in bodies:
                dist.barrier()
                samples.append(self.timed(body))
        slowest = torch.tensor(samples)
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        return slowest.tolist()


def append(path, line):
    file = os.open(path, os.O_WRONLY | os.O_APPEND)
    os.write(file, (line + "\n").encode())
    os.close(file)


def main():
    results, seconds, flags, rows, directory = sys.argv[1:6]
    rank = int(os.environ["RANK"])
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method="file://" + directory + "/meet", rank=rank,
                            world_size=int(os.environ["WORLD_SIZE"]))
    if "pin" in flags.split(","):
        os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank]})
    for row in filter(None, rows.split(",")):
        test, size = row.split(":")
        timing = Timing(test, int(size))
        if not timing.offered():
            continue
        wrong = timing.wrong() if "check" in flags.split(",") else ""
        if wrong:
            append(results, f"wrong 0 {test} {size} {wrong}")
        timing.input.zero_()
        timing.calibrate()
        samples = timing.samples(float(seconds))
        if rank == 0:
            width = 3 if test == "overlap" else 1
            numbers = " ".join(f"{us:.4f}" for us in samples)
            append(results, f"samples 0 {test} {size} {timing.operations} {width} {numbers}")
    dist.barrier()
    dist.destroy_process_group()  # torch's threads would otherwise end the process with a signal now and then


main()
