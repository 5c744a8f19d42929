"""Tensor fusion: exchanges go side by side, and what they wait to send goes as one message.

An exchange calls the transport and waits for the answer, as if it were alone. Each has a thread,
of which one runs at a time: in turn they go on to where they wait for the network. All that waits
for the same collective is then carried at once, and those exchanges go on with what came of it.

Letters: W workers, L hosted here, n elements of one segment, D neighbors.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, partial
from threading import Semaphore
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from ...compiled_loops import once_a_process
from ..cuts import Cuts
from ..messages import Dense, Joined, Message, SharedSparse
from ..mixing import Mixing
from .channel import Channel
from .contract import Passed, Rides, Transport, operation_of

Result = TypeVar("Result")
Exchange = Callable[[Channel], Result]

# What goes first: sums go last, so that what others add up later goes with them.
_ORDER = (
    "all_reduce_max",
    "passed_on",
    "swap",
    "neighbor_mean",
    "gather_mean",
    "weighted_mean",
    "vote",
    "all_gather",
    "mean_of_senders",
    "broadcast",
    "all_reduce_mean",
)


_CARRIERS = {  # what values that are added up may go along with, and as what it is counted
    "all_reduce_mean": ("all-gather",),
    "mean_of_senders": ("all-gather",),
    "vote": ("gather", "broadcast"),
}


def fused(channel: Channel, exchanges: Iterable[Exchange[Result]]) -> list[Result]:
    """Return what each exchange returns, each of which is handed a channel.

    Where the transport fuses, messages that wait together for one collective are one. All ranks
    must call this with the same exchanges. An iterator is asked for the next exchange when those
    before it have counted what they send, so that it may go by that.
    """
    if not channel.transport.fuses:
        return [exchange(channel) for exchange in exchanges]
    turns: list[_Turn[Result]] = []
    try:
        for exchange in exchanges:
            turns.append(_Turn(channel, exchange))
            turns[-1].go_on()
        begins = True
        while waiting := {turn.call: turn for turn in turns if turn.call is not None}:
            calls = _together(list(waiting), channel.transport.rides if begins else None)
            for call, answer in zip(calls, _carried(channel.transport, calls), strict=True):
                waiting[call].go_on(answer)
            begins = False
        return [turn.result for turn in turns]
    finally:
        for turn in turns:
            turn.end()


@dataclass(frozen=True, eq=False)
class _Call:
    """A call of a transport that an exchange waits for."""

    method: str
    message: Message
    also: tuple[Any, ...] = ()  # further arguments, which are the same for all that go together

    @cached_property
    def kind(self) -> tuple[tuple[int, str], Hashable]:
        """The place of its method in the order, and what it has in common with what goes along."""
        return (_ORDER.index(self.method), self.operation), self.form

    @cached_property
    def operation(self) -> str:
        """What an all-reduce does with the message, "" if none takes it."""
        return operation_of(self.message) if self.method == "all_reduce_mean" else ""

    @cached_property
    def form(self) -> Hashable:
        """What all that goes together has in common, whatever carries it."""
        return self._template.dtype, self._template.device, tuple(map(_plain, self.also))

    @property
    def n(self) -> int:
        """Elements of what the message stands for."""
        return self._template.shape[1]

    @cached_property
    def _template(self) -> Tensor:
        return self.message.template


def _plain(argument: Any) -> Hashable:
    """Return a mixing, weights or sources as numbers that compare."""
    argument = argument.weights if isinstance(argument, Mixing) else argument
    if isinstance(argument, Tensor):
        return tuple(argument.shape), tuple(argument.flatten().tolist())
    return tuple(argument)


def _together(waiting: Sequence[_Call], rides: Rides | None) -> list[_Call]:
    """Return the calls that are carried next: those of one kind.

    Where these and sums are all that waits, the sums go with them if one says so of their bytes.
    """
    first = min(waiting, key=lambda call: call.kind[0])
    some = [call for call in waiting if call.kind == first.kind]
    others = [call for call in waiting if call.kind != first.kind]
    carriers = () if first.operation else _CARRIERS.get(first.method, ())
    if rides is None or not carriers or not others:
        return some
    alike = len({call.kind for call in others}) == 1 and others[0].form == first.form
    sums = alike and bool(others[0].operation)
    size = sum(call.message.row_bytes or 0 for call in others)
    return [*some, *others] if sums and rides(carriers, size) else some


def _carried(transport: Transport, calls: Sequence[_Call]) -> Sequence[Any]:
    """Return the answers to calls whose messages go as one, as the first does."""
    first = calls[0]
    if first.method == "swap":
        return _swapped(transport, calls)
    cuts = Cuts(tuple(call.n for call in calls))
    messages = [call.message for call in calls]
    joined = Joined.of(cuts, messages) if len(calls) > 1 else messages[0]
    given = joined.to_dense() if first.method == "all_reduce_max" else joined
    answer = getattr(transport, first.method)(given, *first.also)
    return answer.parts if isinstance(answer, Message) else cuts.split(answer)


def _swapped(transport: Transport, calls: Sequence[_Call]) -> Sequence[Tensor]:
    """Return what neighbors sent to each worker, [L, D, k] for each of several messages."""
    (mixing,), first = calls[0].also, calls[0].message
    assert isinstance(first, Dense)
    places = mixing.neighbors.shape[1]  # D
    values = [call.message.to_dense().unflatten(1, (places, -1)) for call in calls]  # [L, D, k]
    whole = replace(first, values=torch.cat(values, 2).flatten(1))
    arrived = transport.swap(whole, mixing)
    return Cuts(tuple(own.shape[2] for own in values)).split(arrived)


@once_a_process
def _threads() -> ThreadPoolExecutor:
    """Return the threads of this process that exchanges run in, as many as ever went at once."""
    return ThreadPoolExecutor(max_workers=1 << 20)  # all must run: each waits for the others


class _Ended(BaseException):
    """Ends an exchange that waits, since another one failed."""


class _Turn(Generic[Result]):
    """One exchange, which runs in a thread of its own while it is told to go on."""

    result: Result

    def __init__(self, channel: Channel, exchange: Exchange[Result]) -> None:
        own = replace(channel, transport=_Asking(channel.transport, self._ask))
        self.call: _Call | None = None  # that it waits for
        self._exchange = partial(exchange, own)
        self._answer: Any = None
        self._error: BaseException | None = None
        self._ended = False
        self._told, self._stands = Semaphore(0), Semaphore(0)
        self._threads = torch.get_num_threads()  # of an operation, as of the caller's
        self._grad = torch.is_grad_enabled()
        self._stream = torch.cuda.current_stream() if torch.cuda.is_initialized() else None
        self._thread = _threads().submit(self._run)

    def go_on(self, answer: Any = None) -> None:
        """Let it run to its next call, or to its end; raise what it raises."""
        self.call, self._answer = None, answer
        self._told.release()
        self._stands.acquire()
        if self._error is not None:
            raise self._error

    def end(self) -> None:
        """End it, wherever it waits."""
        self._ended = True
        self._told.release()
        self._thread.result()

    def _run(self) -> None:
        self._told.acquire()
        try:
            torch.get_num_threads()  # a new thread looks at the number that it would start with
            torch.set_num_threads(self._threads)
            torch.set_grad_enabled(self._grad)
            with torch.cuda.stream(self._stream):
                if not self._ended:
                    self.result = self._exchange()
        except BaseException as error:
            self._error = error
        self._stands.release()

    def _ask(self, call: _Call) -> Any:
        """Wait for the answer to a call."""
        self.call = call
        self._stands.release()
        self._told.acquire()
        if self._ended:
            raise _Ended
        return self._answer


class _Asking(Transport):
    """The transport as an exchange sees it, which asks for what is carried."""

    def __init__(self, transport: Transport, ask: Callable[[_Call], Any]) -> None:
        self.node = transport.node
        self._transport, self._ask = transport, ask

    def hosted(self, workers: int) -> slice:
        """Return which of `workers` workers are rows here."""
        return self._transport.hosted(workers)

    def all_reduce_mean(self, message: Message) -> Tensor:
        """Return the mean over all workers, [n]; values at shared places go without them."""
        if isinstance(message, SharedSparse):
            values = self.all_reduce_mean(message.inner)  # [k]
            return values.new_zeros(message.n).index_copy_(0, message.index, values)
        return self._tensor("all_reduce_mean", message)

    def gather_mean(self, message: Message) -> Tensor:
        """Return the mean over all workers, [n]."""
        return self._tensor("gather_mean", message)

    def mean_of_senders(self, message: Message) -> Tensor:
        """Return the mean over the workers that sent an element, [n]."""
        if message.summable:
            return self.all_reduce_mean(message)
        return self._tensor("mean_of_senders", message)

    def vote(self, message: Message) -> Tensor:
        """Return the sign of the sum of all workers' signs, [n]."""
        return self._tensor("vote", message)

    def all_reduce_max(self, numbers: Tensor) -> Tensor:
        """Return the largest over all workers of `numbers` [L, n], [1, n]."""
        return self._tensor("all_reduce_max", Dense.of(numbers))

    def neighbor_mean(self, message: Message, mixing: Mixing) -> Tensor:
        """Return the weighted sums over neighbors, [L, n]."""
        return self._tensor("neighbor_mean", message, mixing)

    def passed_on(self, message: Passed, sources: Sequence[int]) -> Passed:
        """Return the message whose rows are what arrived from the sources."""
        arrived: Passed = self._ask(_Call("passed_on", message, (sources,)))
        return arrived

    def swap(self, message: Dense, mixing: Mixing) -> Tensor:
        """Return what each neighbor sent to a worker, [L, D, k]."""
        return self._tensor("swap", message, mixing)

    def weighted_mean(self, message: Message, weights: Tensor) -> Tensor:
        """Return the weighted sum over workers, [n]."""
        return self._tensor("weighted_mean", message, weights)

    def all_gather(self, message: Message) -> Tensor:
        """Return what each worker's message stands for, [W, n]."""
        return self._tensor("all_gather", message)

    def broadcast(self, message: Message) -> Message:
        """Return a server's message as it arrives."""
        arrived: Message = self._ask(_Call("broadcast", message))
        return arrived

    def all_gather_rows(self, own: Tensor) -> Tensor:
        """Return the rows of all workers, at once: it is for records, and not counted."""
        return self._transport.all_gather_rows(own)

    def _tensor(self, method: str, message: Message, *also: Any) -> Tensor:
        answer: Tensor = self._ask(_Call(method, message, also))
        return answer
