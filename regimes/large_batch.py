"""CIFAR by large batches: `cifar_step` with lr times sqrt(B / 128) and B / 128 times the epochs.

So the number of steps is that of a batch of 128. `--scale-lr linear` scales otherwise,
`--no-scale-epochs` keeps the epochs; each worker's BatchNorm is the ghost batch.
Hoffer, Hubara, Soudry, "Train longer, generalize better: closing the generalization gap in large
batch training of neural networks", NeurIPS 2017, https://arxiv.org/abs/1705.08741
Differs from the paper: the rate is reached over five epochs.
"""

regime = {
    0: {"optimizer": "SGD", "lr": 0.1, "momentum": 0.9, "weight_decay": 1e-4, "nesterov": False},
    81: {"lr": 0.01},
    122: {"lr": 0.001},
    164: {"lr": 0.0001},
}
epochs = 164
scale_lr = "sqrt"
scale_epochs = True
