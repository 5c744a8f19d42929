"""CIFAR for 300 epochs: a rate of 0.1, a tenth of it from epoch 150, a hundredth from epoch 225.

Huang, Liu, van der Maaten, Weinberger, "Densely Connected Convolutional Networks", CVPR 2017,
section 4.2, for a batch of 64.
"""

regime = {
    0: {"optimizer": "SGD", "lr": 0.1, "momentum": 0.9, "weight_decay": 1e-4, "nesterov": True},
    150: {"lr": 0.01},
    225: {"lr": 0.001},
}
epochs = 300
batch = 64
