"""Plain SGD for workers that gossip about 25 epochs of digits: 0.1, and a tenth of it at the end.

Momentum stays with each worker and drives models of unlike data apart, so there is none; the last
epochs at a low rate let them come together.
"""

regime = {
    0: {"optimizer": "SGD", "lr": 0.1, "momentum": 0.0, "weight_decay": 5e-4},
    19: {"lr": 0.01},
}
