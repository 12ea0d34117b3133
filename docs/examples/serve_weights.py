"""Four trainers hold a weight in quarters; two servers want it in halves of the other dim."""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard, distribute_tensor

from meshwave.engine.runtime.resharding import reshard

dist.init_process_group("gloo")
trainers, servers = DeviceMesh("cpu", [[0, 1], [2, 3]]), DeviceMesh("cpu", [4, 5])

weight = None
if dist.get_rank() < 4:
    whole = torch.arange(48.0).view(8, 6)
    weight = distribute_tensor(whole, trainers, [Shard(0), Shard(0)], src_data_rank=None)

served = reshard(weight, destination=(servers, [Shard(1)]))

if dist.get_rank() >= 4:
    print(f"process {dist.get_rank()} has {tuple(served.to_local().shape)} of {tuple(served.shape)}")
dist.destroy_process_group()
