"""Sets how many threads torch's operations use, for a while."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def thread_count(threads: int | None) -> Iterator[None]:
    """Let operations of this thread use so many threads; None: as many as before."""
    before = torch.get_num_threads()
    if threads is None or threads == before:
        yield
        return
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
