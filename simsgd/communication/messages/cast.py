"""All values of a segment, in a dtype that the method chose.

Letters: L workers hosted here, n elements of one segment.
"""

from dataclasses import dataclass

from ..wire import Wire
from .dense import Dense


@dataclass(frozen=True)
class Cast(Dense):
    """Values that travel in `wire_dtype` whatever the `value_dtype` of a `Wire` is.

    Sums are formed in the dtype of the gradient, not in `wire_dtype`.
    """

    def on_wire(self, wire: Wire) -> "Cast":
        """Return the message as it is."""
        return self
