"""The seconds that the messages of a run's steps take on a network, one after the other.

Letters: W workers.
"""

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray

from ..settings import SettingError, require
from .compute_times import Floats
from .network import COLLECTIVES, Network, way_of
from .pricing import CARRIERS, Carried, Pricing, carriers_of
from .run_tables import RunTables
from .tables import SEGMENT_COLUMNS
from .timeline import Piece

if TYPE_CHECKING:
    import pandas as pd

_Kind = tuple[str, float]  # a collective and a degree
_Places = dict[_Kind, NDArray[np.int64]]
_Riders = dict[tuple[str, ...], NDArray[np.int64]]  # rows that may ride along, by their carriers
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
        names = {"degree", "payload_bytes", messages, num_bytes, "segments", "rounds", "messages"}
        table = run.transfer_columns(*names, "sending")
        require_columns(run, table, "transfers.csv", *names, "collective")
        names_there = map(str, table["collective"].cat.categories)
        unknown = sorted({*names_there} - {*COLLECTIVES})
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
        queued = table["collective"].isin(["gather", "broadcast"])  # what counts is their sum
        self.num_bytes = table[num_bytes].mask(queued, table["payload_bytes"]).to_numpy()
        kinds = table.groupby(["collective", "degree"], observed=True).indices
        self.kinds = {(str(k[0]), float(k[1])): r for k, r in cast(_Places, kinds).items()}
        self.riders = _riders(table, self.places, len(numbers)) if pricing.fusion else _Riders()

    def carried(self, network: Network) -> Carried:
        """Return what each step's collectives take, one after the other, [steps]."""
        sent = {
            kind: Carried(self.num_bytes[rows], self.messages[rows])
            for kind, rows in self.kinds.items()
        }
        return self._carried(network, sent, self.riders)

    def of_bucket(
        self, network: Network, segments: "pd.DataFrame", names: Collection[str]
    ) -> Carried:
        """Return what each step's messages of some of the segments take, [steps].

        The bytes of a collective are divided among `segments`, those of segments.csv, as when each
        first went this way; the messages of some together are one.
        """
        some = segments[segments["segment"].isin(names)]
        by = "operation" if "operation" in segments else "compressed"
        sent = {}
        for (collective, degree), rows in self.kinds.items():
            every = segments[segments["collective"] == collective]
            own = some[some["collective"] == collective]
            if not own.empty:
                sizes = self.num_bytes[rows] * _share(own, every)
                most = int(own.groupby(by)["messages"].max().sum())
                sent[collective, degree] = Carried(sizes, np.minimum(self.messages[rows], most))
        repeated = some.loc[some.index.repeat(some["messages"])]
        carriers = carriers_of(zip(repeated["segment"], repeated["collective"], strict=True))
        riders = {own: rows for own, rows in self.riders.items() if own == carriers}
        return self._carried(network, sent, riders)

    def _carried(
        self,
        network: Network,
        sent: Mapping[_Kind, Carried],
        riders: _Riders,
    ) -> Carried:
        """Return what messages of some bytes each take; of these `riders` may ride along."""
        seconds, messages, sizes = np.zeros((3, len(self.places)))
        for (collective, degree), (num_bytes, number) in sent.items():
            rows = self.kinds[collective, degree]
            way = way_of(collective, self.num_workers, degree, self.pricing.all_reduce)
            seconds[rows] = way.seconds(network, number, num_bytes)
            messages[rows], sizes[rows] = way.hops * number, num_bytes
        for carriers, rows in riders.items():
            own = Carried(seconds[rows], messages[rows])
            seconds[rows], messages[rows] = self.pricing.riding_along(
                network, self.num_workers, carriers, own, sizes[rows]
            )
        return Carried(self._of_steps(seconds), self._of_steps(messages))

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
    require_columns(run, table, "segments.csv", *(SEGMENT_COLUMNS.keys() - {"operation"}))
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


def _riders(table: "pd.DataFrame", places: NDArray[np.int64], steps: int) -> _Riders:
    """Return the rows of all-reduces that may ride along, by the collectives that carry them.

    As in `carriers_of`: all is sent in one round, and the all-reduced segments and those of the
    carriers are all that send anything.
    """
    number = {name: np.zeros(steps) for name in COLLECTIVES}
    rounds = np.zeros(steps)
    for name in COLLECTIVES:
        rows = (table["collective"] == name).to_numpy()
        number[name][places[rows]] = table["messages"].to_numpy()[rows]
    np.maximum.at(rounds, places, table["rounds"].to_numpy())
    reduces = (table["collective"] == "all-reduce").to_numpy()
    every = np.zeros(steps)
    every[places] = table["sending" if "sending" in table else "segments"]
    riders = _Riders()
    for own in CARRIERS:
        others = {*COLLECTIVES} - {*own, "all-reduce"}
        fits = (rounds == 1) & (number["all-reduce"] + number[own[0]] == every)
        fits &= np.all([number[name] == number[own[0]] for name in own], axis=0)
        fits &= (number[own[0]] > 0) & ~np.any([number[name] > 0 for name in others], axis=0)
        riders[own] = np.flatnonzero(reduces & fits[places]).astype(np.int64)
    return riders


def _share(own: "pd.DataFrame", every: "pd.DataFrame") -> float:
    column = "payload_bytes" if every["payload_bytes"].sum() else "elements"
    return float(own[column].sum() / every[column].sum())
