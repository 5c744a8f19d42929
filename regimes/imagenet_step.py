"""ImageNet for 90 epochs: a rate of 0.1, a tenth from epoch 30, a hundredth from epoch 60.

For a batch of 256; for larger ones `--scale-lr linear`, which is that of Goyal et al., "Accurate,
Large Minibatch SGD: Training ImageNet in 1 Hour", 2017, https://arxiv.org/abs/1706.02677
"""

regime = {
    0: {"optimizer": "SGD", "lr": 0.1, "momentum": 0.9, "weight_decay": 1e-4, "nesterov": False},
    30: {"lr": 0.01},
    60: {"lr": 0.001},
    90: {"lr": 0.0001},
}
epochs = 90
batch = 256
