"""The processes of one node, one for each device: what they tell each other.

They send what `WithinNodes` counts, in the same messages.

Letters: N nodes, G devices of each, n numbers.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ...settings import require
from ..node_bytes import chunk_sizes
from ..wire import value_bytes
from .hops import Hops
from .process_group import collective_device, collective_errors


class NodeRanks:
    """This process's node, of all N G ranks: those of node i are i G to (i + 1) G.

    `firsts` is the group of the first device of each node, for what nodes exchange. `sent` and
    `received` are the bytes of this device within its node. All ranks must make one.
    """

    def __init__(self, devices: int) -> None:
        rank, ranks = dist.get_rank(), dist.get_world_size()
        rule = f"has nodes of {devices} devices, of which {ranks} processes are no multiple"
        require(ranks % devices == 0, "cluster", None, rule)
        self.node, self.device = divmod(rank, devices)
        self.devices, self.nodes = devices, ranks // devices
        with collective_errors():
            self.firsts: Any = dist.new_group(list(range(0, ranks, devices)))
            every = [range(i * devices, (i + 1) * devices) for i in range(self.nodes)]
            self._group: Any = [dist.new_group(list(own)) for own in every][self.node]
        self._hops = Hops(self._group)
        self.sent = self.received = 0

    @property
    def is_first(self) -> bool:
        """Whether this device exchanges for its node."""
        return self.device == 0

    def sum_at_first(self, own: Tensor) -> Tensor:
        """Return the sum of all devices' `own` [n] at the first, and anything at the others.

        Each adds up a share, in the order of devices; then the shares go to the first.
        """
        shares = own.to(collective_device()).contiguous().tensor_split(self.devices)
        others = [d for d in range(self.devices) if d != self.device]
        mine = shares[self.device]
        coming = {d: _bytes(torch.empty_like(mine)) for d in others}
        going = {d: _bytes(shares[d]) for d in others}
        with collective_errors():
            self._hops.exchange(going, coming)
        arrived = {d: buffer.view(own.dtype) for d, buffer in coming.items()} | {self.device: mine}
        total = torch.stack([arrived[d] for d in range(self.devices)]).sum(0)
        sizes = [size * own.element_size() for size in chunk_sizes(len(own), self.devices)]
        with collective_errors():
            gathered = self._hops.gather(_bytes(total), sizes)
        self._count(sum(map(len, going.values())), sum(map(len, coming.values())))
        if gathered is None:
            self._count(sizes[self.device], 0)
            return torch.zeros_like(own)
        self._count(0, sum(sizes[1:]))
        return torch.cat(gathered).view(own.dtype).to(own.device)

    def from_first(self, own: Tensor) -> Tensor:
        """Return the first device's `own` [n] at all: a share to each, which all pass on."""
        values = own.to(collective_device(), copy=True).contiguous()
        sizes = [size * own.element_size() for size in chunk_sizes(len(own), self.devices)]
        parts = list(_bytes(values).split(sizes))
        with collective_errors():
            self._hops.scatter(parts)
            gathered = self._hops.ring_all_gather(parts[self.device], sizes)
        whole, mine = sum(sizes), sizes[self.device]
        after = sizes[(self.device + 1) % self.devices]
        self._count(whole - mine if self.is_first else 0, 0 if self.is_first else mine)
        self._count(whole - after, whole - mine)
        return torch.cat(gathered).view(own.dtype).to(own.device)

    def tell(self, thing: Any) -> Any:
        """Return the first device's thing at all; it is for records, and not counted."""
        box = [thing]
        first = dist.get_global_rank(self._group, 0)
        with collective_errors():
            dist.broadcast_object_list(box, src=first, group=self._group)
        return box[0]

    def ask(self, thing: Any) -> list[Any]:
        """Return the things of all devices, [G]; they are for records, and not counted."""
        box = [thing] * self.devices
        with collective_errors():
            dist.all_gather_object(box, thing, group=self._group)
        return box

    def _count(self, sent: int, received: int) -> None:
        self.sent += sent
        self.received += received


def _bytes(values: Tensor) -> Tensor:
    """Return values as bytes where collectives want them."""
    return value_bytes(values).to(collective_device())
