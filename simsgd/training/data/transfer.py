"""Brings batches from the host to a device; to a GPU from pinned memory, while it computes."""

from collections.abc import Iterable, Iterator
from typing import TypeVar

import torch

from ...gradients.trees import Tree, leaves, mapped

_Item = TypeVar("_Item")
_Sent = tuple[Tree, torch.cuda.Event]  # a batch, and when it has arrived


def on_device(
    batches: Iterable[Tree], device: torch.device | str, ahead: bool = False
) -> Iterator[Tree]:
    """Return batches on a device, in their order.

    A GPU copies a batch from pinned memory beside what it computes, and nothing waits for that but
    the step that needs it. Where others read the batches, `ahead` of their time, the copy of the
    next begins before a batch is returned; what is read here is read while the GPU computes.
    """
    if torch.device(device).type != "cuda":
        for batch in batches:
            yield mapped(lambda leaf: leaf.to(device), batch)
        return
    lane = Lane(device)
    sent = map(lane.send, batches)
    for copying in one_ahead(sent) if ahead else sent:
        yield lane.receive(copying)


class Lane:
    """A stream of a GPU on which batches are copied, beside the stream that computes."""

    def __init__(self, device: torch.device | str) -> None:
        self.device, self.stream = device, torch.cuda.Stream(device)

    def send(self, batch: Tree) -> _Sent:
        """Begin the copy of a batch."""
        with torch.cuda.stream(self.stream):
            there = mapped(lambda leaf: leaf.pin_memory().to(self.device, non_blocking=True), batch)
            return there, self.stream.record_event()

    def receive(self, sent: _Sent) -> Tree:
        """Return a batch; what is computed with it begins when it has arrived."""
        batch, arrived = sent
        computing = torch.cuda.current_stream(self.device)
        computing.wait_event(arrived)
        for leaf in leaves(batch):
            leaf.record_stream(computing)
        return batch


def one_ahead(items: Iterable[_Item]) -> Iterator[_Item]:
    """Return the items, each once the next was made.

    >>> made = (print("made", n) or n for n in range(2))
    >>> [print("returned", n) for n in one_ahead(made)]
    made 0
    made 1
    returned 0
    returned 1
    [None, None]
    """
    made = iter(items)
    for now in made:
        for following in made:
            yield now
            now = following
        yield now
