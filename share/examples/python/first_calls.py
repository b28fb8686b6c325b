# SPDX-License-Identifier: Apache-2.0
"""The calls of the first torch.distributed, in four ranks.

backplane run -n 4 python3 first_calls.py
"""

import backplane.compat.first_torch as dist
import numpy

dist.init_process_group("tcp", init_method="env://")
rank, size = dist.get_rank(), dist.get_world_size()

array = numpy.array([1.0, rank])
dist.all_reduce(array, op=dist.reduce_op.SUM)
assert array.tolist() == [size, size * (size - 1) / 2]
dist.all_reduce(array, dist.reduce_op.MAX, group=dist.group.WORLD)

array = numpy.full(3, rank)
dist.broadcast(array, 1)
assert (array == 1).all()
dist.reduce(array, 0, op=dist.reduce_op.PRODUCT)
dist.barrier()

mine = numpy.array([rank * rank])
everyones = [numpy.zeros(1, int) for _ in range(size)]
dist.all_gather(everyones, mine)
assert [int(each[0]) for each in everyones] == [r * r for r in range(size)]
if rank == 0:
    dist.gather(mine, gather_list=everyones)
    dist.scatter(mine, scatter_list=[numpy.array([10 * r]) for r in range(size)])
else:
    dist.gather(mine, dst=0)
    dist.scatter(mine, src=0)
assert mine[0] == 10 * rank

if rank == 0:
    for _ in range(1, size):
        sender = dist.recv(mine)
        assert mine[0] == sender
else:
    dist.send(numpy.array([rank]), 0)
dist.barrier()  # the receives from any rank would take the next messages, too

neighbour = numpy.zeros(1, int)
receiving = dist.irecv(neighbour, (rank - 1) % size)
sending = dist.isend(numpy.array([rank]), (rank + 1) % size)
receiving.wait()
sending.wait()
assert receiving.is_completed() and neighbour[0] == (rank - 1) % size

even = dist.new_group(list(range(0, size, 2)))
if rank % 2 == 0:
    count = numpy.ones(1)
    dist.all_reduce(count, group=even)
    assert count[0] == (size + 1) // 2

print("rank", rank, "has finished")
dist.destroy_process_group()
