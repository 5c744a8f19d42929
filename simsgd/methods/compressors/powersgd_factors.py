"""Factors of a matrix: made orthonormal, drawn, and multiplied.

Letters: L workers hosted here, r rank, M a matrix [rows, cols], P [rows, r] and Q [cols, r] its
factors.
"""

import math

import torch
from torch import Tensor

from ...keyed_random import RandomKey, uniform


def orthonormal(matrix: Tensor) -> Tensor:
    """Return the columns of each matrix [L, rows, r] made orthonormal one after the other.

    Gram-Schmidt, each column twice, so that rounding leaves nothing of the others in it. A column
    that is a combination of those before it becomes zero. Matrices do not look at each other.
    """
    columns = unit(matrix).mT.contiguous()  # [L, r, rows]
    basis = torch.zeros_like(columns)
    least = 10 * torch.finfo(matrix.dtype).eps
    for j in range(columns.shape[1]):
        column, found = columns[:, j], basis[:, :j]  # [L, rows], [L, j, rows]
        size = _norm(column)
        for _ in range(2):
            shares = (found * column.unsqueeze(1)).sum(2, keepdim=True)  # [L, j, 1]
            column = column - (shares * found).sum(1)
        left = _norm(column)
        basis[:, j] = torch.where(left > least * size, column / left, 0.0)
    return basis.mT


def unit(matrix: Tensor) -> Tensor:
    """Return each matrix with the largest entry of each column at 1; zero stays zero."""
    peak = matrix.abs().amax(1, keepdim=True)  # [L, 1, r]
    return matrix / peak.clamp(min=torch.finfo(matrix.dtype).tiny)


def _norm(column: Tensor) -> Tensor:
    return column.square().sum(1, keepdim=True).sqrt()


def alive(factor: Tensor, key: RandomKey) -> Tensor:
    """Return the factor with columns of zeros drawn again, standard normal, alike for all."""
    shape = factor.shape[1:]
    pairs = uniform(key.shared().keys()[:1], 2 * shape.numel(), factor.dtype)
    return living(factor, normal(*pairs.unflatten(1, (2, *shape)).unbind(1)))


def living(factor: Tensor, drawn: Tensor) -> Tensor:
    """Return the factor with columns of zeros taken from `drawn`."""
    dead = (factor == 0).all(1, keepdim=True)  # [L, 1, r]
    return torch.where(dead, drawn, factor)


def normal(radius: Tensor, turn: Tensor) -> Tensor:
    """Return standard normal numbers of two that are uniform in [0, 1): Box, Muller 1958."""
    return (-2 * (1 - radius).log()).sqrt() * (2 * math.pi * turn).cos()


def product(left: Tensor, right: Tensor) -> Tensor:
    """Return left @ right, right being thin; of one worker what it is among many.

    The kernels for a thin factor are several times faster where each of its columns lies in one
    piece, and where the matrix is not the transposed one. One matrix times one vector runs another
    kernel, which adds in another order; two do not.
    """
    if len(left) == 1 and right.shape[2] == 1:
        return product(left.expand(2, -1, -1), right.expand(2, -1, -1))[:1]
    columns = right.mT.contiguous()  # [L, r, rows or cols]
    if left.stride(1) == 1 and left.stride(2) != 1:
        return (columns @ left.mT).mT
    return left @ columns.mT
