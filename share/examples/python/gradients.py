# SPDX-License-Identifier: Apache-2.0
"""Data-parallel training with MegEngine's gradient callback, on numpy: ranks fit one line to their own samples.

backplane run -n 2 python3 gradients.py
"""

import backplane as dist
import numpy
from backplane.compat.megengine import AllreduceCallback, bcast_list_

dist.init_process_group()
rank = dist.get_rank()
random = numpy.random.default_rng(rank)
inputs = random.uniform(-1, 1, 500)
targets = 3 * inputs + 2 + random.normal(0, 0.01, 500)

slope, offset = random.normal(size=1), random.normal(size=1)
bcast_list_([slope, offset])
reduce = AllreduceCallback("mean")
for _ in range(200):
    errors = slope * inputs + offset - targets
    gradients = [
        reduce("offset", numpy.array([errors.mean()])),
        reduce("slope", numpy.array([(errors * inputs).mean()])),
    ]
    reduce.flush()
    offset -= 0.5 * gradients[0].get()
    slope -= 0.5 * gradients[1].get()
reduce.close()
print(f"rank {rank}: {slope[0]:.1f} x + {offset[0]:.1f}")
dist.destroy_process_group()
