"""Which collective sums sparse messages up.

Letters: W workers, L hosted here, n elements of one segment, k kept.
"""

from functools import lru_cache

from torch import Tensor

from ...communication.messages import Dense, Message, Sparse
from ...communication.segments import Segment
from ...communication.transport import Channel
from ...communication.wire import Wire, index_bits
from ...settings import SPARSE_COLLECTIVES
from .accepted import Accepted
from .cltk import cltk
from .gtopk import gtopk
from .oktopk import of_region, oktopk

_EXACT = ("gtopk", "oktopk", "cltk")  # take plain values at plain places
_COUNT = 4  # bytes, before entries that differ in number


def exchange_sparse(
    collective: str, message: Sparse, x: Tensor, step: int, segment: Segment, channel: Channel
) -> tuple[Message, Tensor]:
    """Return what of `message` the mean holds, and the mean, [n], by a collective.

    `x` [L, n] is what it was made of in a step, which is how many were before it.
    """
    if collective == "auto":
        sizes = received_bytes(message, channel.ledger.workers, channel.wire)
        collective = min(sizes, key=lambda name: sizes[name])
    if collective == "gtopk":
        return gtopk(message, segment, channel)
    if collective == "oktopk":
        return oktopk(message, segment, channel)
    if collective == "cltk":
        return cltk(message, x, step, segment, channel)
    if collective == "dense":
        sent, mean = channel.all_reduce_mean(Dense.of(message.to_dense()), segment)
        return Accepted.whole(message.on_wire(channel.wire), sent.payload_bytes()), mean
    return channel.all_reduce_mean(message, segment)


def received_bytes(message: Sparse, workers: int, wire: Wire) -> dict[str, int]:
    """Return the bytes that reach a worker by each collective that takes the message.

    They follow from the number of entries and of elements alone, so that all workers choose alike;
    those of oktopk are the most that are expected.
    """
    fit = tuple(name for name in SPARSE_COLLECTIVES[:-1] if _fits(name, message, workers, wire))
    k, dtype = message.index.shape[1], wire.dtype(message.values.dtype)
    bits, values = index_bits(wire.index_dtype, message.n), message.inner.row_bytes
    if values is None or isinstance(message.inner, Dense):
        values = k * dtype.itemsize
    return _received(fit, k, message.n, workers, dtype.itemsize, values, bits)


@lru_cache(maxsize=256)  # a step asks for the same of every segment
def _received(
    names: tuple[str, ...], k: int, n: int, workers: int, value: int, values: int, bits: int
) -> dict[str, int]:
    """Return the same by names; a `value` takes so many bytes, and all of a message `values`."""
    places, others = (k * bits + 7) // 8, workers - 1
    c = min(of_region(k, workers, n), -(-n // workers))
    sums = c * value + (c * bits + 7) // 8
    sizes = {
        "allgather": others * (values + places),
        "gtopk": (workers - 1).bit_length() * (values + places),
        "oktopk": others * (values + places) // workers + others * (sums + 2 * _COUNT),
        "cltk": (places + 2 * k * value) * others // workers,
        "dense": 2 * n * value * others // workers,
    }
    return {name: sizes[name] for name in names}


def _fits(collective: str, message: Sparse, workers: int, wire: Wire) -> bool:
    settings = workers, wire.value_dtype, wire.index_dtype
    return not (why_not_of(collective, message) or why_not_with(collective, *settings))


def why_not_of(collective: str, message: Message) -> str:
    """Return why a collective does not take the messages of a compressor; "" if it does."""
    if collective == "allgather" or (isinstance(message, Dense) and message.counts is None):
        return ""
    if not isinstance(message, Sparse):
        return "is for a few entries of each worker, at places of its own, as topk sends them"
    if message.counts is not None and collective != "dense":
        return "needs as many entries of each worker, and how many that is from the settings alone"
    if not isinstance(message.inner, Dense) and collective in _EXACT:
        return "takes values as they are, and no codes of them"
    return ""


def why_not_with(collective: str, workers: int, value_dtype: str | None, index_dtype: str) -> str:
    """Return why a collective cannot be with settings of a step; "" if it can."""
    if collective not in _EXACT:
        return ""
    if index_dtype == "gap16":
        return "cannot be with index_dtype gap16, whose fillers are no entries"
    if collective != "cltk" and value_dtype is not None:
        return (
            f"adds up on the way, where value_dtype {value_dtype} would round what no memory keeps"
        )
    return ""
