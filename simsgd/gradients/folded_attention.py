"""Answers to attention of a folded batch, see `folding`.

Letters: B samples, T queries and S keys of one sample, E numbers each, H heads.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .contract import UnsupportedModel
from .dropout import Function
from .folded_layers import linear
from .folded_products import lengthened
from .folding import MIXED, Folding, answers


@answers(MIXED, F.scaled_dot_product_attention)
def attention(
    folding: Folding,
    func: Function,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    *args: Any,
    **kwargs: Any,
) -> Tensor | None:
    """Answer attention with a mask that is learned, such as a bias for each distance."""
    if attn_mask is None or not folding.is_weight(attn_mask):
        return None
    if any(folding.is_weight(t) for t in (query, key, value)) or attn_mask.dim() > query.dim():
        return None
    if attn_mask.dim() == query.dim():
        if len(attn_mask) != 1:
            return None
        attn_mask = folding.weight(Tensor.squeeze, attn_mask, 0)
    missing = query.dim() - 1 - attn_mask.dim()
    own = folding.weights.own(attn_mask)
    own = own.reshape(len(own), *[1] * missing, *own.shape[1:])
    return func(query, key, value, lengthened(folding, own), *args, **kwargs)


@answers(MIXED, F.multi_head_attention_forward)
def multi_head_attention(
    folding: Folding,
    func: Function,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None,
    static_k: Tensor | None = None,
    static_v: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None] | None:
    """Answer what `nn.MultiheadAttention` calls, with samples second: [T, B, E]."""
    rare = (bias_k, bias_v, static_k, static_v)
    if add_zero_attn or any(t is not None for t in rare):
        return None
    if query.dim() != 3 or query.shape[1] != folding.fold.samples:
        return None
    if dropout_p > 0 and training:
        raise UnsupportedModel("attention draws its dropout from torch's generator")
    if use_separate_proj_weight:
        weights: tuple[Any, ...] = (q_proj_weight, k_proj_weight, v_proj_weight)
    else:
        weights = _thirds(folding, in_proj_weight)
    biases = (None,) * 3 if in_proj_bias is None else _thirds(folding, in_proj_bias)
    first = [t.transpose(0, 1) for t in (query, key, value)]  # [B, T, E]
    if not use_separate_proj_weight and query is key and key is value:
        whole = _linear(folding, first[0], in_proj_weight, in_proj_bias)
        parts = list(whole.chunk(3, -1))
    else:
        every = zip(first, weights, biases, strict=True)
        parts = [_linear(folding, x, w, b) for x, w, b in every]
    q, k, v = (part.unflatten(-1, (num_heads, -1)).transpose(1, 2) for part in parts)
    mask = _mask(q, k, attn_mask, key_padding_mask)
    scores = None
    if need_weights:
        scaled = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5  # [B, H, T, S]
        scores = (scaled if mask is None else scaled + mask).softmax(-1)
        out = scores @ v
        scores = scores.mean(1) if average_attn_weights else scores
    else:
        causal = is_causal and mask is None
        out = F.scaled_dot_product_attention(q, k, v, mask, is_causal=causal)
    joined = _linear(folding, out.transpose(1, 2).flatten(2), out_proj_weight, out_proj_bias)
    return joined.transpose(0, 1), scores


def _linear(folding: Folding, x: Tensor, weight: Any, bias: Tensor | None) -> Tensor:
    out = linear(folding, F.linear, x, weight, bias)
    return F.linear(x, weight, bias) if out is None else out


def _thirds(folding: Folding, weight: Tensor | None) -> tuple[Tensor, ...]:
    assert weight is not None
    parts: Any = folding.weights.computed(Tensor.chunk, (weight, 3), {})
    return tuple(parts)


def _mask(
    q: Tensor, k: Tensor, attn_mask: Tensor | None, key_padding_mask: Tensor | None
) -> Tensor | None:
    """Return what is added to the scores [B, H, T, S], None for nothing."""
    masks = []
    if attn_mask is not None:
        one = (
            attn_mask if attn_mask.dim() == 2 else attn_mask.view(len(q), -1, *attn_mask.shape[1:])
        )
        masks.append(_added(one, q))
    if key_padding_mask is not None:
        masks.append(_added(key_padding_mask, q)[:, None, None, :])
    return sum(masks[1:], masks[0]) if masks else None


def _added(mask: Tensor, like: Tensor) -> Tensor:
    if mask.dtype != torch.bool:
        return mask
    return like.new_zeros(mask.shape).masked_fill_(mask, -torch.inf)
