"""A GPT of nanoGPT's shape: size mini, small or medium, or layers, heads and width of its own.

Radford et al., "Language Models are Unsupervised Multitask Learners", 2019 (GPT-2); Karpathy,
nanoGPT, https://github.com/karpathy/nanoGPT.

It is `transformer_lm` with nanoGPT's sizes and settings: the decoder's matrix is the embedding's,
there are no biases unless `bias=true`, and weight decay acts on matrices alone.
"""

from ._language import require_dropout, require_sizes, require_text, token_loss
from .transformer_lm import TransformerLanguageModel

SIZES = {  # layers, heads, numbers of an embedding
    "mini": (4, 4, 128),
    "small": (6, 6, 384),  # nanoGPT's for characters of Shakespeare
    "medium": (12, 12, 768),  # GPT-2's least
}
regime = "gpt_cosine"
criterion = token_loss


def gpt(
    num_classes: int = 65,
    input_shape: tuple[int, ...] = (256,),
    size: str = "mini",
    layers: int | None = None,
    heads: int | None = None,
    emb: int | None = None,
    dropout: float = 0.0,
    bias: bool = False,
    tie: bool = True,
) -> TransformerLanguageModel:
    """Return the network: `layers`, `heads` and `emb` take the place of those of its `size`.

    It has positions for as many tokens as the data's longest stretch. Raises `ValueError` for an
    unknown size, for numbers that do not go together, and for images.
    """
    require_text("gpt", input_shape)
    if size not in SIZES:
        raise ValueError(f"size must be one of {', '.join(SIZES)}, not {size}")
    usual = SIZES[size]
    layers, heads, emb = (
        own if given is None else given
        for own, given in zip(usual, (layers, heads, emb), strict=True)
    )
    require_sizes(emb=emb, layers=layers, heads=heads)
    require_dropout(dropout)
    if emb % heads:
        raise ValueError(f"emb must be a multiple of heads, not {emb} and {heads}")
    places = input_shape[0]
    return TransformerLanguageModel(num_classes, places, emb, layers, heads, dropout, tie, bias)
