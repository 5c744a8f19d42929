"""CIFAR for 164 epochs: a rate of 0.1, a tenth of it from epoch 81, a hundredth from epoch 122.

For a batch of 128 these are the 64,000 steps, with drops at 32,000 and 48,000, of He, Zhang, Ren,
Sun, "Deep Residual Learning for Image Recognition", CVPR 2016, section 4.2.
"""

regime = {
    0: {"optimizer": "SGD", "lr": 0.1, "momentum": 0.9, "weight_decay": 1e-4, "nesterov": False},
    81: {"lr": 0.01},
    122: {"lr": 0.001},
    164: {"lr": 0.0001},
}
epochs = 164
