"""Lets a trained language model continue a text.

Letters: T tokens at most that the model sees, V entries of the vocabulary.
"""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from ..catalog import begin_texts
from ..given_object import plain_arguments
from ..gradients.contract import carried
from ..settings import SettingError, require, require_kind
from .data import Streams, Text
from .data.vocabulary import UNKNOWN
from .evaluate import restored

_LONGEST = 1_000_000  # tokens of a text


@plain_arguments
def generate(
    checkpoint: Path | str,
    *,
    prompt: str = "\n",
    length: int = 200,
    temperature: float = 0.8,
    top_k: int | None = None,
    seed: int = 0,
    data_dir: Path | str | None = None,
    device: str | None = None,
) -> str:
    """Return the `prompt` and `length` tokens that the model of a checkpoint adds to it.

    `checkpoint` is a file or a run's folder, which means its last one. Each token is drawn by its
    probability, whose logarithm is divided by `temperature` first: 0 always takes the most likely
    one, which `top_k=1` does too. Raises `SettingError` for a model that was trained on no text,
    and for a prompt with characters that its text lacks.
    """
    require_kind("prompt", prompt, str)
    require_kind("temperature", temperature, float)
    require(length >= 1, "length", length, "must be at least 1")
    require(length <= _LONGEST, "length", length, f"must be at most {_LONGEST:,}")
    require(
        0 <= temperature < float("inf"),
        "temperature",
        temperature,
        "must be a finite number of at least 0",
    )
    require(top_k is None or top_k >= 1, "top_k", top_k, "must be at least 1")
    require(0 <= seed < 2**63, "seed", seed, "must lie in [0, 2**63)")
    experiment = restored(checkpoint, data_dir, device)
    text, config = experiment.dataset, experiment.config
    if not isinstance(text, Text):
        rule = f"was trained on {config.dataset}, which is not a text"
        raise SettingError("checkpoint", str(checkpoint), rule)
    begun = _encoded(prompt, text)
    generator = torch.Generator().manual_seed(seed)

    def drawn(scores: Tensor) -> int:
        return _drawn(scores, text, temperature, top_k, generator)

    longest = Streams.of(text.train, config).longest
    written = _continued(experiment.model.eval(), begun.to(config.device), length, longest, drawn)
    return text.vocabulary.decode([*begun.tolist(), *written])


def _encoded(prompt: str, text: Text) -> Tensor:
    """Return the numbers of a prompt's tokens, [N]; its last line goes on unless it is ended."""
    vocabulary = text.vocabulary
    bare = prompt == "" or (vocabulary.kind == "word" and not prompt.strip(" \t"))
    require(not bare, "prompt", prompt, "must not be empty", "leave it out to begin a line")
    strange = sorted({*prompt} - {*vocabulary.entries})
    if vocabulary.kind == "char" and text.min_count == 1 and strange:
        rule = f"has characters that the training text lacks: {' '.join(strange)}"
        raise SettingError("prompt", prompt, rule)
    if vocabulary.kind == "byte":
        prompt = prompt.encode().decode("latin-1")
    numbers = vocabulary.encode(prompt)
    ends = vocabulary.kind != "word" or prompt.endswith("\n")
    return numbers if ends else numbers[:-1]


@torch.no_grad()
def _continued(
    model: nn.Module, unread: Tensor, length: int, longest: int, drawn: Callable[[Tensor], int]
) -> list[int]:
    """Return the `length` tokens that follow `unread` [N], each `drawn` by the scores [V].

    A model that carries a state reads each token once, any other the last `longest` of them.
    """
    keeps = bool(carried(model))
    if keeps:
        begin_texts(model, 1)
    written: list[int] = []
    while len(written) < length:
        unread = unread if keeps else unread[-longest:]
        scores: Tensor = model(unread.unsqueeze(0))[0, -1]
        written.append(drawn(scores.double().cpu()))
        new = unread.new_tensor(written[-1:])
        unread = new if keeps else torch.cat([unread, new])
    return written


def _drawn(
    scores: Tensor, text: Text, temperature: float, top_k: int | None, generator: torch.Generator
) -> int:
    """Return a token drawn by its scores [V], never the one for unknown tokens."""
    scores = scores.clone()
    if UNKNOWN in text.vocabulary.entries:
        scores[text.vocabulary.entries.index(UNKNOWN)] = -torch.inf
    if top_k is not None:
        least = scores.topk(min(top_k, len(scores))).values[-1]
        scores[scores < least] = -torch.inf
    if temperature == 0:
        return int(scores.argmax())
    chances = ((scores - scores.max()) / temperature).softmax(0)  # finite at any temperature
    return int(chances.multinomial(1, generator=generator))
