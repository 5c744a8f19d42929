"""Prints the bytes of a step as tables."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..results.text_table import columns
from ..units import in_units

if TYPE_CHECKING:
    from .step_bytes import SegmentSize, Sizes

_NOTES = {
    "gradient": "Sizes follow the gradient: these are of one normal draw.",
    "step": "Sizes change from step to step: these are of an even one, late in a run.",
}


def bill(sizes: "Sizes", per_layer: bool = False, explain: bool = False) -> str:
    """Return the totals, with a line for each segment, and its arithmetic, where asked for."""
    parts = [_head(sizes), _worker(sizes), _network(sizes), *_within(sizes)]
    if per_layer or explain:
        parts.append(_segments(sizes.segments, explain))
    if sizes.varies:
        parts.append(_NOTES[sizes.varies])
    return "\n\n".join(parts)


def _head(sizes: "Sizes") -> str:
    whole = sum(not segment.compressed for segment in sizes.segments)
    compressed = len(sizes.segments) - whole
    return (
        f"{sizes.model}: {sizes.elements:,} parameters in {sizes.tensors} tensors, "
        f"{_crew(sizes)}\n"
        f"{_means(sizes)}: {compressed} segments compressed, {whole} sent whole"
    )


def _crew(sizes: "Sizes") -> str:
    if sizes.within is None:
        return f"{sizes.workers} workers"
    return f"{sizes.workers} workers, nodes of {len(sizes.within.sent)} devices each"


def _means(sizes: "Sizes") -> str:
    spec, sent = sizes.algorithm, sizes.compressor
    if sizes.layers:
        sent = f"{sizes.layers}, others {sent}"
    return sent if spec == "allreduce" else f"{spec}, compressor {sent}"


def _worker(sizes: "Sizes") -> str:
    received = sizes.downlink_bytes
    answer = ["answer", ""] if received else []
    rows = [[_sender(sizes), "sends", "", *answer, "uncompressed", "", "ratio"]]
    for span, steps in _spans(sizes):
        answer = _both(received * steps // sizes.period) if received else []
        sent = _both(sizes.payload_bytes * steps // sizes.period)
        dense = _both(sizes.dense_bytes * steps // sizes.period)
        rows.append([span, *sent, *answer, *dense, f"{sizes.ratio:.1f}"])
    if sizes.period > 1:
        most, whole = max(sizes.step_payloads), sizes.dense_bytes // sizes.period
        blank = ["", ""] if received else []
        share = f"{whole / most:.1f}" if most else "inf"
        rows.insert(2, ["a step, at most", *_both(most), *blank, *_both(whole), share])
    return columns(rows)


def _sender(sizes: "Sizes") -> str:
    """Return whose bytes are told: those of one who sends most, if workers are not alike."""
    differ = any(sent.of_each for segment in sizes.segments for sent in segment.sent)
    return "the busiest worker" if differ else "one worker"


def _network(sizes: "Sizes") -> str:
    spans = _spans(sizes)
    heads = [cell for span, _ in spans for cell in (span, "")]
    rows = [["all workers together", *heads]]
    carried = sizes.network_bytes
    if len(carried) > 1:
        carried = {**carried, "total": sum(carried.values())}
    carried["received by one"] = sizes.received_bytes
    carried["the busiest link, one way"] = sizes.link_bytes
    for collective, number in carried.items():
        whole = (_both(number * steps // sizes.period) for _, steps in spans)
        rows.append([collective, *(cell for cells in whole for cell in cells)])
    return columns(rows)


def _within(sizes: "Sizes") -> list[str]:
    """Return what the devices of a node send and receive in a step, if workers are nodes."""
    if sizes.within is None:
        return []
    sent, received = sizes.within.sent, sizes.within.received
    rows = [["within a node, a step", "sends", "", "receives", ""]]
    rows.append(["its first device", *_both(sent[0]), *_both(received[0])])
    rows.append(["another, at most", *_both(max(sent[1:])), *_both(max(received[1:]))])
    return [columns(rows)]


def _spans(sizes: "Sizes") -> list[tuple[str, int]]:
    """Return spans of time, and how many steps they are."""
    spans = [("a step", 1)]
    if sizes.period > 1:
        spans = [("a step, on average", 1), (f"a round of {sizes.period} steps", sizes.period)]
    if sizes.steps is not None:
        spans.append((f"an epoch of {sizes.steps:,} steps", sizes.steps))
    return spans


def _segments(segments: "Sequence[SegmentSize]", explain: bool) -> str:
    last = ["arithmetic"] if explain else []
    own = ["compressor"] if any(segment.compressor for segment in segments) else []
    rows = [["segment", "shape", "elements", "a worker sends", "ratio", "by", *own, *last]]
    for segment in segments:
        payload = segment.payload_bytes
        rows.append(
            [
                segment.name,
                "x".join(map(str, segment.shape)),
                f"{segment.elements:,}",
                f"{payload:,} B",
                f"{segment.dense_bytes / payload:.1f}" if payload else "inf",
                ", ".join(dict.fromkeys(sent.collective for sent in segment.sent)),
                *([segment.compressor if segment.compressed else "none"] if own else []),
                *([_arithmetic(segment)] if explain else []),
            ]
        )
    return columns(rows, left=(0, 1, 5, 6, 7))


def _arithmetic(segment: "SegmentSize") -> str:
    sent = " + ".join(sent.words for sent in segment.sent if sent.direction == "up")
    answers = [f"; answer: {sent.words}" for sent in segment.sent if sent.direction == "down"]
    return sent + "".join(answers)


def _both(number: int) -> list[str]:
    return [in_units(number), f"{number:,} B"]
