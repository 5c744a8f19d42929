"""A small GPT: a transformer that reads from left to right, normalized before each part.

Vaswani et al., "Attention Is All You Need", NeurIPS 2017, https://arxiv.org/abs/1706.03762;
Radford et al., "Language Models are Unsupervised Multitask Learners", 2019 (GPT-2).
It sees the T tokens of a stretch, and nothing before them.

Letters: b streams of T tokens, V words of the vocabulary, E numbers of an embedding, A heads.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from ._language import require_dropout, require_sizes, require_text, token_loss

# For 128 streams of Python's help topics (`pydoc`).
regime = {
    0: {"optimizer": "AdamW", "lr": 3e-3, "weight_decay": 0.01},
    9: {"lr": 6e-4},
}
epochs = 12
criterion = token_loss


def transformer_lm(
    num_classes: int = 10_000,
    input_shape: tuple[int, ...] = (35,),
    emb: int = 64,
    layers: int = 2,
    heads: int = 4,
    dropout: float = 0.0,
    tie: bool = True,
) -> "TransformerLanguageModel":
    """Return the network: `layers` blocks of `heads` heads, embeddings of `emb` numbers.

    With `tie`, the decoder's matrix is the embedding's. It has positions for as many tokens as the
    data's longest stretch. Raises `ValueError` for sizes that do not exist or do not go together,
    and for images.
    """
    require_text("transformer_lm", input_shape)
    require_sizes(emb=emb, layers=layers, heads=heads)
    require_dropout(dropout)
    if emb % heads:
        raise ValueError(f"emb must be a multiple of heads, not {emb} and {heads}")
    return TransformerLanguageModel(num_classes, input_shape[0], emb, layers, heads, dropout, tie)


class TransformerLanguageModel(nn.Module):
    """Embeddings of tokens and of their places, blocks, a normalization, a decoder."""

    def __init__(
        self,
        vocabulary: int,
        places: int,
        emb: int,
        layers: int,
        heads: int,
        dropout: float,
        tie: bool,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, emb)
        self.places = nn.Embedding(places, emb)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.Sequential(*(Block(emb, heads, dropout, bias) for _ in range(layers)))
        self.norm = nn.LayerNorm(emb, bias=bias)
        self.decoder = nn.Linear(emb, vocabulary, bias=False)
        self.apply(_initialize)
        for name, weight in self.named_parameters():
            if name.endswith(("out.weight", "feed.2.weight")):  # added to x: scaled as in GPT-2
                nn.init.normal_(weight, std=0.02 * (2 * layers) ** -0.5)
        if tie:
            self.decoder.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the scores [b, T, V] of what follows each of `tokens` [b, T].

        Raises `ValueError` for more tokens than there are places.
        """
        length, places = tokens.shape[1], self.places.num_embeddings
        if length > places:
            raise ValueError(f"{length} tokens in a row, and the network has {places} places")
        place = torch.arange(length, device=tokens.device).expand(tokens.shape)
        x = self.dropout(self.embedding(tokens) + self.places(place))  # [b, T, E]
        scores: Tensor = self.decoder(self.norm(self.blocks(x)))
        return scores


class Block(nn.Module):
    """x + attention(norm(x)), then x + feed(norm(x))."""

    def __init__(self, emb: int, heads: int, dropout: float, bias: bool = True) -> None:
        super().__init__()
        self.first_norm = nn.LayerNorm(emb, bias=bias)
        self.attention = Attention(emb, heads, dropout, bias)
        self.second_norm = nn.LayerNorm(emb, bias=bias)
        wide, narrow = nn.Linear(emb, 4 * emb, bias=bias), nn.Linear(4 * emb, emb, bias=bias)
        self.feed = nn.Sequential(wide, nn.GELU(), narrow)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Return [b, T, E] of `x` [b, T, E]."""
        x = x + self.dropout(self.attention(self.first_norm(x)))
        out: Tensor = x + self.dropout(self.feed(self.second_norm(x)))
        return out


class Attention(nn.Module):
    """Each token looks at itself and at those before it: softmax(q k / sqrt(E / A)) v.

    Written as plain products, which batch over workers; the fused kernels do not.
    """

    def __init__(self, emb: int, heads: int, dropout: float, bias: bool = True) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(emb, 3 * emb, bias=bias)
        self.out = nn.Linear(emb, emb, bias=bias)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Return [b, T, E] of `x` [b, T, E]."""
        parts = self.qkv(x).unflatten(-1, (3, self.heads, -1))  # [b, T, 3, A, E / A]
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)  # [b, A, T, E / A] each
        scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5  # [b, A, T, T]
        length = x.shape[1]
        later = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        weights = self.dropout(functional.softmax(scores.masked_fill(later, -torch.inf), dim=-1))
        out: Tensor = self.out((weights @ v).transpose(1, 2).flatten(2))
        return out


def _initialize(layer: nn.Module) -> None:
    """Draw weights from a normal distribution of standard deviation 0.02, as GPT-2."""
    if isinstance(layer, nn.Linear | nn.Embedding):
        nn.init.normal_(layer.weight, std=0.02)
    if isinstance(layer, nn.Linear) and layer.bias is not None:
        nn.init.zeros_(layer.bias)
