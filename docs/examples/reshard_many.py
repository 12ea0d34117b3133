"""Without DTensors: one tensor at once, the sum of a partial one, a prepared transfer, and several tensors by one plan."""

import torch
import torch.distributed as dist

from meshwave.engine.resharding import Mesh
from meshwave.engine.runtime.resharding import ReshardItem, prepare, reshard, reshard_many

dist.init_process_group("gloo")
rank = dist.get_rank()
is_trainer = rank < 4
trainers = Mesh(shape=(2, 2), ranks=(0, 1, 2, 3), hosts=(0, 0, 1, 1))
servers = Mesh(shape=(2,), ranks=(4, 5), hosts=(2, 2))

local = torch.full((2, 6), float(rank)) if is_trainer else None
shard = reshard(local, (trainers, ("S10", "R")), (servers, ("R", "S0")), shape=(8, 6))

# partial sums of a tensor along axis 1 of the mesh: every receiver gets the sum
partial_sum = torch.ones(4, 6) if is_trainer else None
summed = reshard(partial_sum, (trainers, ("S0", "R", "P1")), (servers, ("R", "S0")), shape=(8, 6))
assert is_trainer or summed.eq(2).all()

# a plan that is used in every step
ready = prepare(local, (trainers, ("S10", "R")), (servers, ("R", "S0")), shape=(8, 6))
for _ in range(3):
    moving = ready.start(local, into=shard)  # returns at once
    moving.wait()  # compute before this line

# several tensors by one plan
items = [
    ReshardItem((8, 6), torch.float32, (trainers, ("S10", "R")), (servers, ("R", "S0")), name="weight"),
    ReshardItem((6,), torch.float32, (trainers, ("S0", "P1")), (servers, ("R",)), name="bias"),
]
given = {"weight": local, "bias": torch.ones(3)} if is_trainer else {}
weight, bias = reshard_many(items, given).wait()
if not is_trainer:
    print(f"process {rank} has a weight of {tuple(weight.shape)} and a bias of {bias.tolist()}")
dist.destroy_process_group()
