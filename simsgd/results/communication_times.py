"""The seconds that the messages of a run's steps take on a network, one after the other.

Letters: W workers.
"""

from collections.abc import Collection
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray

from ..settings import SettingError, require
from .compute_times import Floats
from .network import COLLECTIVES, Network, way_of
from .pricing import Pricing
from .run_tables import RunTables
from .tables import SEGMENT_COLUMNS
from .timeline import Piece

if TYPE_CHECKING:
    import pandas as pd

_Places = dict[tuple[str, float], NDArray[np.int64]]  # of each collective and degree
_FUSED = ("rounds", "payload_bytes_max")  # messages of a step, and the bytes that it waits for
_UNFUSED = ("messages", "slowest_bytes")


class Transfers:
    """The collectives of a run's steps, read once, to be priced on several networks.

    `steps` has the columns step and network_bytes. Raises `SettingError` for a run that lacks a
    step that sent something.
    """

    def __init__(self, run: RunTables, steps: "pd.DataFrame", pricing: Pricing) -> None:
        self.run, self.pricing, self.num_workers = run, pricing, run.num_workers
        messages, num_bytes = _FUSED if pricing.fusion else _UNFUSED
        names = {"degree", "payload_bytes", messages, num_bytes, "segments"}
        table = run.transfer_columns(*names)
        require_columns(run, table, "transfers.csv", *names, "collective")
        unknown = sorted({*table["collective"].cat.categories} - {*COLLECTIVES})
        rule = f"has a transfers.csv with a collective that is not known, {', '.join(unknown)}"
        require(not unknown, "run", str(run.folder), rule)
        numbers, self.of_number = np.unique(steps["step"], return_inverse=True)
        table = table[table["step"].isin(numbers)]
        self.places = np.searchsorted(numbers, table["step"])  # [transfers]
        segments = np.zeros(len(numbers))
        segments[self.places] = table["segments"]
        if ((segments[self.of_number] == 0) & (steps["network_bytes"] > 0)).any():
            rule = "has no transfers.csv, or not of every step that sent something"
            fix = "train it again: an earlier version wrote none"
            raise SettingError("run", str(run.folder), rule, fix)
        self.segments = np.where(segments, segments, segments.max())[self.of_number]  # [steps]
        self.messages = table[messages].to_numpy()
        gathers = table["collective"] == "gather"  # the sum of its buffers counts: they queue
        self.num_bytes = table[num_bytes].mask(gathers, table["payload_bytes"]).to_numpy()
        kinds = table.groupby(["collective", "degree"], observed=True).indices
        self.kinds = {(str(k[0]), float(k[1])): r for k, r in cast(_Places, kinds).items()}

    def seconds(self, network: Network) -> Floats:
        """Return the seconds of each step's collectives, one after the other, [steps]."""
        seconds = np.zeros(len(self.places))
        for (collective, degree), rows in self.kinds.items():
            way = way_of(collective, self.num_workers, degree, self.pricing.all_reduce)
            seconds[rows] = way.seconds(network, self.messages[rows], self.num_bytes[rows])
        return self._of_steps(seconds)

    def bucket_seconds(
        self, network: Network, segments: "pd.DataFrame", names: Collection[str]
    ) -> Floats:
        """Return the seconds of each step's messages of some of the segments, [steps].

        The bytes of a collective are divided among `segments`, those of segments.csv, as when each
        first went this way; the messages of some together are one.
        """
        seconds = np.zeros(len(self.places))
        for (collective, degree), rows in self.kinds.items():
            every = segments[segments["collective"] == collective]
            own = every[every["segment"].isin(names)]
            if own.empty:
                continue
            way = way_of(collective, self.num_workers, degree, self.pricing.all_reduce)
            sizes = self.num_bytes[rows] * _share(own, every)
            seconds[rows] = way.seconds(network, int(own["messages"].max()), sizes)
        return self._of_steps(seconds)

    def _of_steps(self, seconds: Floats) -> Floats:
        of_numbers = np.bincount(self.places, seconds, minlength=self.of_number.max() + 1)
        return of_numbers[self.of_number].astype("float64")


def require_columns(run: RunTables, table: "pd.DataFrame", file: str, *names: str) -> None:
    """Raise `SettingError` for a table of a run that lacks columns."""
    lacking = sorted({*names} - {*table})
    rule = f"has a {file} without the columns {', '.join(lacking)}"
    require(not lacking, "run", str(run.folder), rule, "train it again")


def segments_of(run: RunTables) -> "pd.DataFrame":
    """Return segments.csv. Raises `SettingError` if there is none."""
    table = run.segments
    if table.empty:
        rule = "has no segments.csv, from which overlap buckets knows when messages are ready"
        fix = "train it again: an earlier version wrote none; or take overlap perfect"
        raise SettingError("run", str(run.folder), rule, fix)
    require_columns(run, table, "segments.csv", *SEGMENT_COLUMNS)
    return table


def pieces_of(segments: "pd.DataFrame", itemsize: int, column: str = "sendable") -> list[Piece]:
    """Return the segments of segments.csv, each once, ready when a column says."""
    once = segments.drop_duplicates("segment", keep="last")
    return [
        Piece(
            str(row["segment"]),
            int(row["elements"]) * itemsize,
            float(row[column]),
            int(row["elements"]) * int(row["compressed"]),
        )
        for row in once.to_dict("records")
    ]


def _share(own: "pd.DataFrame", every: "pd.DataFrame") -> float:
    column = "payload_bytes" if every["payload_bytes"].sum() else "elements"
    return float(own[column].sum() / every[column].sum())
