"""A language model of LSTM layers, whose state is carried along the text.

Zaremba, Sutskever, Vinyals, "Recurrent Neural Network Regularization", 2014,
https://arxiv.org/abs/1409.2329 (dropout on all but the recurrent connections); Press, Wolf, "Using
the Output Embedding to Improve Language Models", EACL 2017, https://arxiv.org/abs/1608.05859 (one
matrix for embedding and decoder).
Differs from the papers: two biases a layer, as cuDNN and torch.nn.LSTM have them.

Letters: b streams of T tokens, V words of the vocabulary, H units of a layer.
"""

import torch
from torch import Tensor, nn

from ._language import require_dropout, require_sizes, require_text, token_loss

# For 128 streams of Python's help topics (`pydoc`), a minute or so on one core; larger texts take a
# larger network, and clipping.
regime = {
    0: {"optimizer": "SGD", "lr": 3.0, "momentum": 0.9},
    9: {"lr": 0.6},
}
epochs = 12
criterion = token_loss


def lstm_lm(
    num_classes: int = 10_000,
    input_shape: tuple[int, ...] = (35,),
    emb: int | None = None,
    hidden: int = 64,
    layers: int = 1,
    dropout: float = 0.0,
    tie: bool = True,
) -> "LSTMLanguageModel":
    """Return the network: embeddings of `emb` numbers, `layers` layers of `hidden` units.

    `emb` is `hidden` unless given. With `tie`, the decoder's matrix is the embedding's, which needs
    the two to be equal. `hidden=1500, layers=2, dropout=0.65` is Zaremba's large network.
    Raises `ValueError` for sizes that do not exist or do not go together, and for images.
    """
    require_text("lstm_lm", input_shape)
    emb = hidden if emb is None else emb
    require_sizes(hidden=hidden, emb=emb, layers=layers)
    require_dropout(dropout)
    if tie and emb != hidden:
        raise ValueError(f"tie needs emb to be hidden, not {emb} and {hidden}; or set tie=false")
    return LSTMLanguageModel(num_classes, emb, hidden, layers, dropout, tie)


class LSTMLanguageModel(nn.Module):
    """Embedding, LSTM layers with dropout before, between and after them, a decoder.

    The buffers named in `carried`, [b, layers, H], hold the state of each stream: a forward pass
    begins with what is in them and leaves there what the next begins with. No gradient goes back
    through them.
    """

    carried = ("hidden", "cell")
    hidden: Tensor
    cell: Tensor

    def __init__(
        self, vocabulary: int, emb: int, hidden: int, layers: int, dropout: float, tie: bool
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, emb)
        self.dropout = nn.Dropout(dropout)
        sizes = [emb] + [hidden] * (layers - 1)
        self.layers = nn.ModuleList(LSTMLayer(size, hidden) for size in sizes)
        self.decoder = nn.Linear(hidden, vocabulary)
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        nn.init.uniform_(self.decoder.weight, -0.1, 0.1)
        nn.init.zeros_(self.decoder.bias)
        if tie:
            self.decoder.weight = self.embedding.weight
        self.shape = layers, hidden
        for name in self.carried:
            self.register_buffer(name, torch.empty(0), persistent=False)
        self.begin(1)

    def begin(self, streams: int) -> None:
        """Stand before the first token of `streams` streams: a state of zeros for each."""
        for name in self.carried:
            setattr(self, name, self.decoder.bias.new_zeros(streams, *self.shape))

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the scores [b, T, V] of what follows each of `tokens` [b, T].

        Raises `ValueError` if the state is that of another number of streams.
        """
        if len(tokens) != len(self.hidden):
            told = f"the state is of {len(self.hidden)} streams, and {len(tokens)} came"
            raise ValueError(f"{told}; call begin({len(tokens)}) first")
        x = self.dropout(self.embedding(tokens))  # [b, T, E]
        states = []
        for number, layer in enumerate(self.layers):
            before = self.hidden[:, number].clone(), self.cell[:, number].clone()
            x, after = layer(x, before)
            x = self.dropout(x)
            states.append(after)
        for own, parts in zip((self.hidden, self.cell), zip(*states, strict=True), strict=True):
            own.copy_(torch.stack(parts, 1).detach())
        scores: Tensor = self.decoder(x)
        return scores


class LSTMLayer(nn.Module):
    """What torch.nn.LSTM computes with one layer, in operations that batch over workers.

    i, f, g, o = W_ih x + b_ih + W_hh h + b_hh
    c' = sigmoid(f) c + sigmoid(i) tanh(g)
    h' = sigmoid(o) tanh(c')
    """

    def __init__(self, inputs: int, units: int) -> None:
        super().__init__()
        self.ih = nn.Linear(inputs, 4 * units)
        self.hh = nn.Linear(units, 4 * units)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -(units**-0.5), units**-0.5)

    def forward(
        self, x: Tensor, state: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Return the outputs [b, T, H] for `x` [b, T, E], and the state (h, c) after the last.

        `state` is that before the first, [b, H] each.
        """
        h, c = state
        outputs = []
        for inputs in self.ih(x).unbind(1):  # [b, 4 H] each
            i, f, g, o = (inputs + self.hh(h)).chunk(4, dim=1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            outputs.append(h)
        return torch.stack(outputs, dim=1), (h, c)
