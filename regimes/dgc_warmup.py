"""The kept fraction of Deep Gradient Compression: 25, 6.25, 1.5625, 0.4, then 0.1 %.

Meant to be joined to a schedule of the learning rate: `--regime model+dgc_warmup`.
Lin et al., "Deep Gradient Compression", ICLR 2018, section 3.3.
"""

regime = {
    0: {"prune": 0.75},
    1: {"prune": 0.9375},
    2: {"prune": 0.984375},
    3: {"prune": 0.996},
    4: {"prune": 0.999},
}
