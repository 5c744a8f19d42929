"""The kept fraction of DGC's warm-up as a geometric row: base^((e + 1) / (E + 1)) in E = 5 epochs.

With a base of 0.001: 31.6, 10, 3.16, 1, 0.316, then 0.1 %. Meant to be joined to a schedule of the
learning rate: `--regime model+dgc_warmup_geometric`.
Lin et al., "Deep Gradient Compression", ICLR 2018, whose released code has this row by default.
"""

_BASE, _EPOCHS = 0.001, 5

regime = {
    epoch: {"prune": 1 - _BASE ** ((epoch + 1) / (_EPOCHS + 1)) if epoch < _EPOCHS else 0.999}
    for epoch in range(_EPOCHS + 1)
}
