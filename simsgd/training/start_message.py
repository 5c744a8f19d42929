"""Describes a run before its first step.

Letters: W workers, b samples each, n elements of one segment.
"""

from collections import Counter

from ..communication.messages import Sparse
from ..config import Config, default
from ..gradients.auto import engine_note
from ..methods.collectives import received_bytes
from ..methods.compressors.powersgd import PowerSGD
from ..settings import count, kept
from ..simulator.layer_compressors import LayerRules, by_segment
from ..simulator.notes import notes_of
from ..units import counted, module_name
from .data import Text
from .data.embedded import EMBEDDED
from .experiment import Experiment
from .length_notes import length_notes
from .thread_choice import machine_line
from .used_settings import optimizer_line, used_settings

_NAMED = 5  # parameters that a note names


def start_message(experiment: Experiment) -> str:
    """Return the lines: what is trained on what, what is sent, optimizer, engine, and notes."""
    config, simulator = experiment.config, experiment.simulator
    lines = [_header(experiment), *_of_files(config), *_of_text(experiment)]
    if config.prune or config.compressor:
        lines.append(_compression(experiment))
    lines += _of_layers(experiment)
    lines += _of_collective(experiment)
    if config.algorithm != "allreduce":
        lines.append(_algorithm(experiment))
    lines.append(optimizer_line(used_settings(experiment)))
    lines.append(f"engine {config.engine}" + engine_note(simulator.components.engine))
    lines.append(machine_line(experiment.threads))
    if config.cuda_graph == "auto" and simulator.components.graphs is None:
        lines.append(f"note: no CUDA graph: the device is {config.device}")
    lines += notes_of(simulator.components) + length_notes(experiment)
    lines += _of_data(experiment) + _of_ranks(experiment)
    lines += _of_unused(experiment)
    if simulator.steps:
        lines.append(f"resumed after step {simulator.steps}")
    return "\n".join(lines)


def _header(experiment: Experiment) -> str:
    config = experiment.config
    model, data = module_name(config.model or ""), experiment.dataset.name
    length, what = (config.bptt, "tokens") if config.bptt else (1, "samples")
    samples, used = len(experiment.dataset.train), experiment.batches * experiment.batch * length
    unused = f" ({samples - used} of {samples} {what} left out)" if used < 0.9 * samples else ""
    each = "samples" if config.bptt is None else f"streams x {config.bptt} tokens"
    return (
        f"{model} on {data}: {experiment.simulator.components.layout.n:,} parameters, "
        f"{_workers(config)} x {config.worker_batch // config.devices} {each}, "
        f"{counted(experiment.batches, 'step')} an epoch{unused}, "
        f"{_length(experiment)}, {config.device}"
    )


def _workers(config: Config) -> str:
    """Return how many workers there are, and of how many devices each is a node."""
    nodes = f"{config.workers} workers"
    return nodes if config.cluster is None else f"{nodes}, nodes of {config.devices} devices each,"


def _length(experiment: Experiment) -> str:
    steps, batches, size = (
        experiment.config.steps,
        experiment.batches,
        experiment.config.until_bytes,
    )
    until = f" or until each worker has sent {size:,} bytes" if size else ""
    if steps is None:
        return counted(experiment.config.epochs or 0, "epoch") + until
    return f"{counted(steps, 'step')} ({steps / batches:.4g} epochs){until}"


def _of_files(config: Config) -> list[str]:
    """Return whose code a resumed run has run, which its config.json names and not the user."""
    files = config.files_of_code if config.resume is not None else []
    return [f"the run names files of code, which were run: {', '.join(files)}"] if files else []


def _algorithm(experiment: Experiment) -> str:
    """Return the algorithm's settings, and its graph."""
    config, algorithm = experiment.config, experiment.simulator.components.algorithm
    settings = algorithm.describe(config.workers)
    return f"algorithm {config.algorithm}" + (f": {settings}" if settings else "")


def _of_text(experiment: Experiment) -> list[str]:
    text = experiment.dataset
    if not isinstance(text, Text):
        return []
    told = f"perplexity {text.unigram_perplexity:.2f} if guessed by frequency alone"
    return [
        f"{len(text.train):,} {text.vocabulary.kind}s of text, {text.num_classes:,} known; {told}"
    ]


def _compression(experiment: Experiment) -> str:
    config, layout = experiment.config, experiment.simulator.components.layout
    of_rules = by_segment(layout, rules := _layers(experiment), rules, None)
    pairs = zip(layout.segments, of_rules, strict=True)
    compressed = [segment.n for segment, rule in pairs if not segment.dense and rule is None]
    rest = "follow rules of their layers or are sent whole" if rules else "are sent whole"
    end = f"{layout.n - sum(compressed):,} more {rest}; memory {config.memory}"
    if config.prune:
        sent = sum(count(kept(config.prune), n) for n in compressed)
        return (
            f"prune {config.prune:g} keeps {sent:,} of {sum(compressed):,} entries of each "
            f"worker's gradient; {end}"
        )
    return (
        f"compressor {config.compressor} acts on {sum(compressed):,} entries of each worker's "
        f"gradient; {end}"
    )


def _of_layers(experiment: Experiment) -> list[str]:
    """Return a line with the layers that have a compressor of their own, and how large they are."""
    layout, rules = experiment.simulator.components.layout, _layers(experiment)
    if not rules:
        return []
    of_rules = by_segment(layout, rules, rules, None)
    pairs = [pair for pair in zip(layout.segments, of_rules, strict=True) if not pair[0].dense]
    sizes = [sum(segment.n for segment, own in pairs if own is rule) for rule in rules]
    each = [f"{rule} on {n:,} entries" for rule, n in zip(rules, sizes, strict=True)]
    return [f"compress layers {', '.join(each)}; memory {experiment.config.memory}"]


def _of_collective(experiment: Experiment) -> list[str]:
    """Return a line with what `collective auto` takes in the first step, and what it saves."""
    config, parts = experiment.config, experiment.simulator.components
    if config.collective != "auto":
        return []
    taken, received, gathered = Counter[str](), 0, 0
    for state in parts.segment_states:
        message = state.compressor.probe(state.segment.shape)
        if isinstance(message, Sparse) and not state.segment.dense:
            own = received_bytes(message, config.workers, parts.channel.wire)
            name = min(own, key=lambda each: own[each])
            taken[name] += 1
            received, gathered = received + own[name], gathered + own["allgather"]
    each = ", ".join(f"{name} for {counted(number, 'segment')}" for name, number in taken.items())
    sizes = f"{received:,} bytes reach a worker in a step, {gathered:,} by allgather"
    return [f"collective auto takes {each}: {sizes}"] if taken else []


def _layers(experiment: Experiment) -> LayerRules:
    """Return the rules of layers with which the run begins."""
    rules: LayerRules = experiment.simulator.components.regime.at(0, 0).get("compress_layers", ())
    return rules


def _of_data(experiment: Experiment) -> list[str]:
    """Return notes on how the data were read, and on settings of files that are not."""
    config, dataset = experiment.config, experiment.dataset
    notes = [] if isinstance(dataset, Text) or not dataset.note else [f"note: {dataset.note}"]
    embedded = config.dataset in (*EMBEDDED, "pydoc")
    given = {"--data-dir": config.data_dir != default("data_dir"), "--download": config.download}
    return notes + [
        f"note: {option} is not used: {config.dataset} comes with simsgd"
        for option, is_given in given.items()
        if embedded and is_given
    ]


def _of_ranks(experiment: Experiment) -> list[str]:
    """Return a note on a low rank that no matrix is above: its factors are the larger."""
    states = experiment.simulator.components.segment_states
    fitted = [s.compressor for s in states if not s.segment.dense]
    wide = [c for c in fitted if isinstance(c, PowerSGD) and c.is_of_full_rank]
    if not wide or len(wide) < len(fitted):
        return []
    rank = f"rank {wide[0].rank} is at least the shorter side of every matrix"
    return [f"note: {rank}: its factors have more entries than the matrices themselves"]


def _of_unused(experiment: Experiment) -> list[str]:
    """Return a note if parameters get no gradient from the first batch."""
    unused = experiment.simulator.unused_parameters(*next(experiment.epoch_batches(0)))
    if not unused:
        return []
    named = ", ".join(unused[:_NAMED]) + (", ..." if len(unused) > _NAMED else "")
    return [
        f"note: {len(unused)} parameter(s) get no gradient from the first batch, and are neither "
        f"sent nor changed while that is so: {named}"
    ]
