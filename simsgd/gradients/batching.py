"""`torch.func.vmap` without its warnings that a function has no batched form of its own."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

_SLOW = "There is a performance drop because we have not yet implemented the batching rule"


@contextmanager
def quiet_batching() -> Iterator[None]:
    """Ignore these warnings within: the user did not choose vmap, nor can mend the function."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=_SLOW)
        yield
