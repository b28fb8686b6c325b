# SPDX-License-Identifier: Apache-2.0
"""Names that one earlier library had. A program of that library changes its import.

- `backplane.compat.first_torch`: the first torch.distributed
- `backplane.compat.hf`: hfai.distributed
- `backplane.compat.megengine`: megengine.distributed.helper
"""
