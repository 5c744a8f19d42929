#!/usr/bin/env bash
# The experiments that simsgd's forebears published, those of the README and those of docs/evidence.md,
# one line each.
#
#   ./run_experiments.sh list                        what there is
#   ./run_experiments.sh NAME... [OPTION...]         run those of a name, or whose names begin so,
#                                                    with more options of `simsgd train`
#   ./run_experiments.sh --all | NAME... --quick     on embedded data, small, a minute at most each
#   ./run_experiments.sh --sample --quick            those marked *, of each group what no test does
#
# Runs go to runs/experiments, or to $RUNS (quick ones to $RUNS-quick); seeds are those in $SEEDS,
# by default 0. A run that is there already is gone on with, so the script may be stopped and
# started again. At the end it prints a table.
set -euo pipefail

experiments() { # NAME | options of simsgd train | options that make it quick; a line of # opens a group
  cat <<'TABLE'
# The README's table: whole runs of the main job; *: 64 workers with 2 samples each.
readme-dense            | --workers 16 | --epochs 10
readme-prune-none       | --workers 16 --prune 0.999 --memory none | --epochs 10
readme-prune-residual   | --workers 16 --prune 0.999 --memory residual | --epochs 10
readme-prune-dgc        | --workers 16 --prune 0.999 | --epochs 10
readme-prune-none-cold  | --workers 16 --prune 0.999 --memory none --no-warmup | --epochs 10
readme-prune-dgc-cold   | --workers 16 --prune 0.999 --no-warmup | --epochs 10
readme-dense-w4         | --workers 4 --global-batch-size 128 | --epochs 10
readme-prune-dgc-w4     | --workers 4 --global-batch-size 128 --prune 0.999 | --epochs 10
readme-dense-w64        | --workers 64 --global-batch-size 128 | --epochs 10
readme-prune-dgc-w64 *  | --workers 64 --global-batch-size 128 --prune 0.999 | --epochs 10
# Gossip of workers with a few classes each; *: a whole run under regime gossip.
gossip-allreduce        | --workers 16 --partition sorted --regime gossip | --epochs 6
gossip-dpsgd            | --workers 16 --partition sorted --regime gossip --algorithm dpsgd | --epochs 6
gossip-choco-sign *     | --workers 16 --partition sorted --regime gossip --algorithm choco --compressor sign --consensus-stepsize 0.1 | --epochs 6
gossip-choco-topk       | --workers 16 --partition sorted --regime gossip --algorithm choco --compressor topk:0.01 --consensus-stepsize 0.05 | --epochs 6
gossip-dcd              | --workers 16 --partition sorted --regime gossip --algorithm dcd --compressor qsgd:255,bucket=512 | --epochs 6
gossip-deepsqueeze      | --workers 16 --partition sorted --regime gossip --algorithm deepsqueeze --compressor qsgd:255,bucket=512 --consensus-stepsize 0.5 | --epochs 6
# DGC on ResNets; *: its warm-up under the regime of a model, to the end.
dgc-resnet20-dense      | --model resnet --model-config depth=20 --dataset cifar10 --workers 4 --batch-size 32 | --dataset digits --model-config depth=8 --batch-size 16 --epochs 8
dgc-resnet20-w4         | --model resnet --model-config depth=20 --dataset cifar10 --workers 4 --batch-size 32 --prune 0.999 | --dataset digits --model-config depth=8 --batch-size 16 --epochs 8
dgc-resnet20-w8         | --model resnet --model-config depth=20 --dataset cifar10 --workers 8 --batch-size 32 --prune 0.999 | --dataset digits --model-config depth=8 --batch-size 8 --epochs 8
dgc-resnet20-w16        | --model resnet --model-config depth=20 --dataset cifar10 --workers 16 --batch-size 32 --prune 0.999 | --dataset digits --model-config depth=8 --batch-size 4 --epochs 8
dgc-resnet20-w32        | --model resnet --model-config depth=20 --dataset cifar10 --workers 32 --batch-size 32 --prune 0.999 | --dataset digits --model-config depth=8 --batch-size 2 --epochs 8
dgc-resnet110-w4 *      | --model resnet --model-config depth=110 --dataset cifar10 --workers 4 --batch-size 32 --prune 0.999 | --dataset digits --model-config depth=14 --batch-size 16 --epochs 8
dgc-resnet110-w8        | --model resnet --model-config depth=110 --dataset cifar10 --workers 8 --batch-size 32 --prune 0.999 | --dataset digits --model-config depth=14 --batch-size 8 --epochs 8
dgc-resnet110-w16       | --model resnet --model-config depth=110 --dataset cifar10 --workers 16 --batch-size 32 --prune 0.999 | --dataset digits --model-config depth=14 --batch-size 4 --epochs 8
dgc-resnet110-w32       | --model resnet --model-config depth=110 --dataset cifar10 --workers 32 --batch-size 32 --prune 0.999 | --dataset digits --model-config depth=14 --batch-size 2 --epochs 8
# A language model; *: on a real text, long enough for its perplexity to fall.
lstm-dense              | --model lstm_lm --dataset ptb --workers 16 | --dataset pydoc --epochs 8
lstm-topk *             | --model lstm_lm --dataset ptb --workers 16 --compressor topk:0.001 --memory residual | --dataset pydoc --epochs 8
# Compressed by layer or as one model; *: each way on a convolutional model, at its own size of batches.
layers-resnet9-topk     | --model resnet9 --dataset cifar10 --workers 2 --batch-size 512 --compressor topk:0.01 --memory none --granularity layer | --dataset digits --model-config width=8 --batch-size 32 --epochs 10
model-resnet9-topk      | --model resnet9 --dataset cifar10 --workers 2 --batch-size 512 --compressor topk:0.01 --memory none --granularity model | --dataset digits --model-config width=8 --batch-size 32 --epochs 10
layers-resnet9-randomk  | --model resnet9 --dataset cifar10 --workers 2 --batch-size 512 --compressor randomk:0.1 --memory none --granularity layer | --dataset digits --model-config width=8 --batch-size 32 --epochs 10
model-resnet9-randomk   | --model resnet9 --dataset cifar10 --workers 2 --batch-size 512 --compressor randomk:0.1 --memory none --granularity model | --dataset digits --model-config width=8 --batch-size 32 --epochs 10
layers-resnet9-threshold | --model resnet9 --dataset cifar10 --workers 2 --batch-size 512 --compressor threshold:0.001 --memory none --granularity layer | --dataset digits --model-config width=8 --batch-size 32 --epochs 10
model-resnet9-threshold | --model resnet9 --dataset cifar10 --workers 2 --batch-size 512 --compressor threshold:0.001 --memory none --granularity model | --dataset digits --model-config width=8 --batch-size 32 --epochs 10
layers-resnet9-terngrad * | --model resnet9 --dataset cifar10 --workers 2 --batch-size 512 --compressor terngrad --granularity layer | --dataset digits --model-config width=8 --batch-size 32 --epochs 10
model-resnet9-terngrad  | --model resnet9 --dataset cifar10 --workers 2 --batch-size 512 --compressor terngrad --granularity model | --dataset digits --model-config width=8 --batch-size 32 --epochs 10
layers-resnet9-qsgd     | --model resnet9 --dataset cifar10 --workers 2 --batch-size 512 --compressor qsgd:255 --granularity layer | --dataset digits --model-config width=8 --batch-size 32 --epochs 10
model-resnet9-qsgd      | --model resnet9 --dataset cifar10 --workers 2 --batch-size 512 --compressor qsgd:255 --granularity model | --dataset digits --model-config width=8 --batch-size 32 --epochs 10
layers-alexnet-topk     | --model alexnet --dataset cifar10 --workers 2 --batch-size 64 --compressor topk:0.01 --memory none --granularity layer | --dataset digits --model-config width=16,hidden=64,batch_norm=True --batch-size 32 --epochs 15 --lr 0.1
model-alexnet-topk *    | --model alexnet --dataset cifar10 --workers 2 --batch-size 64 --compressor topk:0.01 --memory none --granularity model | --dataset digits --model-config width=16,hidden=64,batch_norm=True --batch-size 32 --epochs 15 --lr 0.1
layers-alexnet-randomk  | --model alexnet --dataset cifar10 --workers 2 --batch-size 64 --compressor randomk:0.1 --memory none --granularity layer | --dataset digits --model-config width=16,hidden=64,batch_norm=True --batch-size 32 --epochs 15 --lr 0.1
model-alexnet-randomk   | --model alexnet --dataset cifar10 --workers 2 --batch-size 64 --compressor randomk:0.1 --memory none --granularity model | --dataset digits --model-config width=16,hidden=64,batch_norm=True --batch-size 32 --epochs 15 --lr 0.1
layers-alexnet-threshold | --model alexnet --dataset cifar10 --workers 2 --batch-size 64 --compressor threshold:0.001 --memory none --granularity layer | --dataset digits --model-config width=16,hidden=64,batch_norm=True --batch-size 32 --epochs 15 --lr 0.1
model-alexnet-threshold | --model alexnet --dataset cifar10 --workers 2 --batch-size 64 --compressor threshold:0.001 --memory none --granularity model | --dataset digits --model-config width=16,hidden=64,batch_norm=True --batch-size 32 --epochs 15 --lr 0.1
layers-alexnet-terngrad | --model alexnet --dataset cifar10 --workers 2 --batch-size 64 --compressor terngrad --granularity layer | --dataset digits --model-config width=16,hidden=64,batch_norm=True --batch-size 32 --epochs 15 --lr 0.1
model-alexnet-terngrad  | --model alexnet --dataset cifar10 --workers 2 --batch-size 64 --compressor terngrad --granularity model | --dataset digits --model-config width=16,hidden=64,batch_norm=True --batch-size 32 --epochs 15 --lr 0.1
layers-alexnet-qsgd     | --model alexnet --dataset cifar10 --workers 2 --batch-size 64 --compressor qsgd:255 --granularity layer | --dataset digits --model-config width=16,hidden=64,batch_norm=True --batch-size 32 --epochs 15 --lr 0.1
model-alexnet-qsgd      | --model alexnet --dataset cifar10 --workers 2 --batch-size 64 --compressor qsgd:255 --granularity model | --dataset digits --model-config width=16,hidden=64,batch_norm=True --batch-size 32 --epochs 15 --lr 0.1
# CHOCO-SGD on a ResNet; *: models of their own with BatchNorm, evaluated as one.
choco-resnet20-ring16 * | --model resnet --model-config depth=20 --dataset cifar10 --workers 16 --batch-size 128 --algorithm choco --topology ring --compressor sign --consensus-stepsize 0.45 | --dataset digits --model-config depth=8 --batch-size 4 --epochs 8
choco-resnet20-dpsgd    | --model resnet --model-config depth=20 --dataset cifar10 --workers 16 --batch-size 128 --algorithm dpsgd --topology ring | --dataset digits --model-config depth=8 --batch-size 4 --epochs 8
# Methods that send seldom or little, on a GPT and a text of characters in data/shakespeare; *: a composition of all kinds of parts.
lowcomm-adamw           | --model gpt --dataset text:shakespeare --tokens char --bptt 64 --workers 8 --batch-size 2 --steps 480 --eval-every 120 | --dataset pydoc --model-config layers=1,heads=2,emb=32 --bptt 32 --workers 4 --batch-size 16 --steps 30
lowcomm-diloco          | --model gpt --dataset text:shakespeare --tokens char --bptt 64 --workers 8 --batch-size 2 --steps 480 --eval-every 120 --method diloco | --dataset pydoc --model-config layers=1,heads=2,emb=32 --bptt 32 --workers 4 --batch-size 16 --steps 30
lowcomm-streaming       | --model gpt --dataset text:shakespeare --tokens char --bptt 64 --workers 8 --batch-size 2 --steps 480 --eval-every 120 --method streaming_diloco | --dataset pydoc --model-config layers=1,heads=2,emb=32 --bptt 32 --workers 4 --batch-size 16 --steps 30
lowcomm-sparseloco *    | --model gpt --dataset text:shakespeare --tokens char --bptt 64 --workers 8 --batch-size 2 --steps 480 --eval-every 120 --method sparseloco | --dataset pydoc --model-config layers=1,heads=2,emb=32 --bptt 32 --workers 4 --batch-size 16 --steps 30
lowcomm-demo            | --model gpt --dataset text:shakespeare --tokens char --bptt 64 --workers 8 --batch-size 2 --steps 480 --eval-every 120 --method demo | --dataset pydoc --model-config layers=1,heads=2,emb=32 --bptt 32 --workers 4 --batch-size 16 --steps 30
lowcomm-muloco          | --model gpt --dataset text:shakespeare --tokens char --bptt 64 --workers 8 --batch-size 2 --steps 480 --eval-every 120 --method muloco | --dataset pydoc --model-config layers=1,heads=2,emb=32 --bptt 32 --workers 4 --batch-size 16 --steps 30
lowcomm-sparta          | --model gpt --dataset text:shakespeare --tokens char --bptt 64 --workers 8 --batch-size 2 --steps 480 --eval-every 120 --method sparta | --dataset pydoc --model-config layers=1,heads=2,emb=32 --bptt 32 --workers 4 --batch-size 16 --steps 30
lowcomm-dion            | --model gpt --dataset text:shakespeare --tokens char --bptt 64 --workers 8 --batch-size 2 --steps 480 --eval-every 120 --method dion | --dataset pydoc --model-config layers=1,heads=2,emb=32 --bptt 32 --workers 4 --batch-size 16 --steps 30
# Large batches; *: regime large_batch, longer, with ghost batches.
batch-small             | --model resnet --model-config depth=44 --dataset cifar10 --workers 1 --batch-size 128 | --dataset digits --model-config depth=8 --batch-size 32 --epochs 8
batch-large             | --model resnet --model-config depth=44 --dataset cifar10 --workers 1 --batch-size 4096 | --dataset digits --model-config depth=8 --batch-size 512 --epochs 8
batch-large-ghost       | --model resnet --model-config depth=44 --dataset cifar10 --workers 32 --batch-size 128 | --dataset digits --model-config depth=8 --workers 16 --batch-size 32 --epochs 8
batch-large-ghost-sqrt  | --model resnet --model-config depth=44 --dataset cifar10 --workers 32 --batch-size 128 --scale-lr sqrt | --dataset digits --model-config depth=8 --workers 16 --batch-size 32 --epochs 8
batch-large-longer *    | --model resnet --model-config depth=44 --dataset cifar10 --workers 32 --batch-size 128 --regime large_batch | --dataset digits --model-config depth=8 --workers 16 --batch-size 32 --epochs 32
# What docs/evidence.md measures, on images of CIFAR-10 in data/cifar16: DGC.
evidence-dgc-dense      | --model resnet --model-config depth=8 --dataset imagefolder:cifar16 --workers 16 --batch-size 8 --regime cifar_cosine --epochs 8 | --dataset digits --model-config depth=8 --batch-size 4 --epochs 8
evidence-dgc-prune      | --model resnet --model-config depth=8 --dataset imagefolder:cifar16 --workers 16 --batch-size 8 --regime cifar_cosine --epochs 8 --prune 0.999 | --dataset digits --model-config depth=8 --batch-size 4 --epochs 8
evidence-dgc-none       | --model resnet --model-config depth=8 --dataset imagefolder:cifar16 --workers 16 --batch-size 8 --regime cifar_cosine --epochs 8 --prune 0.999 --memory none | --dataset digits --model-config depth=8 --batch-size 4 --epochs 8
evidence-dgc-residual   | --model resnet --model-config depth=8 --dataset imagefolder:cifar16 --workers 16 --batch-size 8 --regime cifar_cosine --epochs 8 --prune 0.999 --memory residual | --dataset digits --model-config depth=8 --batch-size 4 --epochs 8
evidence-dgc-w4-dense   | --model resnet --model-config depth=8 --dataset imagefolder:cifar16 --workers 4 --batch-size 32 --regime cifar_cosine --epochs 8 | --dataset digits --model-config depth=8 --batch-size 16 --epochs 8
evidence-dgc-w4-prune   | --model resnet --model-config depth=8 --dataset imagefolder:cifar16 --workers 4 --batch-size 32 --regime cifar_cosine --epochs 8 --prune 0.999 | --dataset digits --model-config depth=8 --batch-size 16 --epochs 8
# The same: compressed by layer or as one model.
evidence-layers-dense   | --model resnet9 --model-config width=8 --dataset imagefolder:cifar16 --workers 2 --batch-size 128 --epochs 8 | --dataset digits --model-config width=8 --batch-size 32 --epochs 10
evidence-layers-topk-percent-layer | --model resnet9 --model-config width=8 --dataset imagefolder:cifar16 --workers 2 --batch-size 128 --epochs 8 --compressor topk:0.01 --memory none --granularity layer | --dataset digits --model-config width=8 --batch-size 32 --epochs 10
evidence-layers-topk-percent-model | --model resnet9 --model-config width=8 --dataset imagefolder:cifar16 --workers 2 --batch-size 128 --epochs 8 --compressor topk:0.01 --memory none --granularity model | --dataset digits --model-config width=8 --batch-size 32 --epochs 10
evidence-layers-topk-permille-layer | --model resnet9 --model-config width=8 --dataset imagefolder:cifar16 --workers 2 --batch-size 128 --epochs 8 --compressor topk:0.001 --memory none --granularity layer | --dataset digits --model-config width=8 --batch-size 32 --epochs 10
evidence-layers-topk-permille-model | --model resnet9 --model-config width=8 --dataset imagefolder:cifar16 --workers 2 --batch-size 128 --epochs 8 --compressor topk:0.001 --memory none --granularity model | --dataset digits --model-config width=8 --batch-size 32 --epochs 10
evidence-layers-randomk-layer | --model resnet9 --model-config width=8 --dataset imagefolder:cifar16 --workers 2 --batch-size 128 --epochs 8 --compressor randomk:0.01 --memory none --granularity layer | --dataset digits --model-config width=8 --batch-size 32 --epochs 10
evidence-layers-randomk-model | --model resnet9 --model-config width=8 --dataset imagefolder:cifar16 --workers 2 --batch-size 128 --epochs 8 --compressor randomk:0.01 --memory none --granularity model | --dataset digits --model-config width=8 --batch-size 32 --epochs 10
evidence-layers-threshold-layer | --model resnet9 --model-config width=8 --dataset imagefolder:cifar16 --workers 2 --batch-size 128 --epochs 8 --compressor threshold:0.001 --memory none --granularity layer | --dataset digits --model-config width=8 --batch-size 32 --epochs 10
evidence-layers-threshold-model | --model resnet9 --model-config width=8 --dataset imagefolder:cifar16 --workers 2 --batch-size 128 --epochs 8 --compressor threshold:0.001 --memory none --granularity model | --dataset digits --model-config width=8 --batch-size 32 --epochs 10
evidence-layers-terngrad-layer | --model resnet9 --model-config width=8 --dataset imagefolder:cifar16 --workers 2 --batch-size 128 --epochs 8 --compressor terngrad --granularity layer | --dataset digits --model-config width=8 --batch-size 32 --epochs 10
evidence-layers-terngrad-model | --model resnet9 --model-config width=8 --dataset imagefolder:cifar16 --workers 2 --batch-size 128 --epochs 8 --compressor terngrad --granularity model | --dataset digits --model-config width=8 --batch-size 32 --epochs 10
evidence-layers-qsgd-layer | --model resnet9 --model-config width=8 --dataset imagefolder:cifar16 --workers 2 --batch-size 128 --epochs 8 --compressor qsgd:255 --granularity layer | --dataset digits --model-config width=8 --batch-size 32 --epochs 10
evidence-layers-qsgd-model | --model resnet9 --model-config width=8 --dataset imagefolder:cifar16 --workers 2 --batch-size 128 --epochs 8 --compressor qsgd:255 --granularity model | --dataset digits --model-config width=8 --batch-size 32 --epochs 10
# The same: a recurrent language model, on the words of a novel in data/war_and_peace; *: a method that looks at samples.
evidence-text-dense     | --model lstm_lm --dataset text:war_and_peace --min-count 20 --workers 8 --batch-size 8 --epochs 2 | --dataset pydoc --epochs 2
evidence-text-topk      | --model lstm_lm --dataset text:war_and_peace --min-count 20 --workers 8 --batch-size 8 --epochs 2 --compressor topk:0.001 --memory residual | --dataset pydoc --epochs 2
evidence-text-adacomp   | --model lstm_lm --dataset text:war_and_peace --min-count 20 --workers 8 --batch-size 8 --epochs 2 --compressor adacomp --memory residual | --dataset pydoc --epochs 2
evidence-text-variance * | --model lstm_lm --dataset text:war_and_peace --min-count 20 --workers 8 --batch-size 8 --epochs 2 --compressor variance | --dataset pydoc --epochs 2
evidence-text-sign      | --model lstm_lm --dataset text:war_and_peace --min-count 20 --workers 8 --batch-size 8 --epochs 2 --compressor sign --memory residual | --dataset pydoc --epochs 2
evidence-text-terngrad  | --model lstm_lm --dataset text:war_and_peace --min-count 20 --workers 8 --batch-size 8 --epochs 2 --compressor terngrad --memory none | --dataset pydoc --epochs 2
evidence-text-terngrad-residual | --model lstm_lm --dataset text:war_and_peace --min-count 20 --workers 8 --batch-size 8 --epochs 2 --compressor terngrad --memory residual | --dataset pydoc --epochs 2
# The same: gossip, with equal and with unequal classes, for the same epochs and for the same bytes.
evidence-gossip-allreduce | --model resnet --model-config depth=8 --dataset imagefolder:cifar16 --workers 16 --batch-size 8 --regime cifar_cosine --epochs 5 | --dataset digits --model-config depth=8 --batch-size 4 --epochs 4
evidence-gossip-ring-dpsgd | --model resnet --model-config depth=8 --dataset imagefolder:cifar16 --workers 16 --batch-size 8 --regime cifar_cosine --epochs 5 --algorithm dpsgd --topology ring | --dataset digits --model-config depth=8 --batch-size 4 --epochs 4
evidence-gossip-ring-choco | --model resnet --model-config depth=8 --dataset imagefolder:cifar16 --workers 16 --batch-size 8 --regime cifar_cosine --epochs 5 --algorithm choco --compressor sign --consensus-stepsize 0.45 --topology ring | --dataset digits --model-config depth=8 --batch-size 4 --epochs 4
evidence-gossip-ring-choco-topk | --model resnet --model-config depth=8 --dataset imagefolder:cifar16 --workers 16 --batch-size 8 --regime cifar_cosine --epochs 5 --algorithm choco --compressor topk:0.01 --consensus-stepsize 0.1 --topology ring | --dataset digits --model-config depth=8 --batch-size 4 --epochs 4
evidence-gossip-ring-dpsgd-bytes | --model resnet --model-config depth=8 --dataset imagefolder:cifar16 --workers 16 --batch-size 8 --regime cifar_cosine --steps 15 --algorithm dpsgd --topology ring | --dataset digits --model-config depth=8 --batch-size 4 --steps 10
evidence-gossip-torus-dpsgd | --model resnet --model-config depth=8 --dataset imagefolder:cifar16 --workers 16 --batch-size 8 --regime cifar_cosine --epochs 5 --algorithm dpsgd --topology torus | --dataset digits --model-config depth=8 --batch-size 4 --epochs 4
evidence-gossip-torus-choco | --model resnet --model-config depth=8 --dataset imagefolder:cifar16 --workers 16 --batch-size 8 --regime cifar_cosine --epochs 5 --algorithm choco --compressor sign --consensus-stepsize 0.45 --topology torus | --dataset digits --model-config depth=8 --batch-size 4 --epochs 4
evidence-gossip-unequal-dpsgd | --model resnet --model-config depth=8 --dataset imagefolder:cifar16 --workers 16 --batch-size 8 --regime cifar_cosine --epochs 5 --algorithm dpsgd --topology ring --partition dirichlet:0.1 | --dataset digits --model-config depth=8 --batch-size 4 --epochs 4
evidence-gossip-unequal-choco | --model resnet --model-config depth=8 --dataset imagefolder:cifar16 --workers 16 --batch-size 8 --regime cifar_cosine --epochs 5 --algorithm choco --compressor sign --consensus-stepsize 0.45 --topology ring --partition dirichlet:0.1 | --dataset digits --model-config depth=8 --batch-size 4 --epochs 4
# The same: low rank beside signs and largest entries, each with its residual.
evidence-rank-dense     | --model resnet18_cifar --model-config width=16 --dataset imagefolder:cifar16 --workers 4 --batch-size 32 --regime cifar_cosine --epochs 5 | --dataset digits --model-config width=8 --batch-size 16 --epochs 4
evidence-rank-powersgd  | --model resnet18_cifar --model-config width=16 --dataset imagefolder:cifar16 --workers 4 --batch-size 32 --regime cifar_cosine --epochs 5 --compressor powersgd:2 --memory residual | --dataset digits --model-config width=8 --batch-size 16 --epochs 4
evidence-rank-sign      | --model resnet18_cifar --model-config width=16 --dataset imagefolder:cifar16 --workers 4 --batch-size 32 --regime cifar_cosine --epochs 5 --compressor sign --memory residual | --dataset digits --model-config width=8 --batch-size 16 --epochs 4
evidence-rank-topk      | --model resnet18_cifar --model-config width=16 --dataset imagefolder:cifar16 --workers 4 --batch-size 32 --regime cifar_cosine --epochs 5 --compressor topk:0.01 --memory residual | --dataset digits --model-config width=8 --batch-size 16 --epochs 4
# The same: large batches as one, in ghost batches, and for as many steps as a small one.
evidence-batch-small    | --model resnet --model-config depth=8 --dataset imagefolder:cifar16 --workers 1 --batch-size 128 --regime cifar_cosine --epochs 5 | --dataset digits --model-config depth=8 --batch-size 32 --epochs 4
evidence-batch-large    | --model resnet --model-config depth=8 --dataset imagefolder:cifar16 --workers 1 --batch-size 512 --regime cifar_cosine --epochs 5 | --dataset digits --model-config depth=8 --batch-size 128 --epochs 4
evidence-batch-ghost    | --model resnet --model-config depth=8 --dataset imagefolder:cifar16 --workers 4 --batch-size 128 --scale-lr sqrt --regime cifar_cosine --epochs 5 | --dataset digits --model-config depth=8 --batch-size 32 --epochs 4
evidence-batch-longer   | --model resnet --model-config depth=8 --dataset imagefolder:cifar16 --workers 4 --batch-size 128 --scale-lr sqrt --regime cifar_cosine --epochs 20 | --dataset digits --model-config depth=8 --batch-size 32 --epochs 16
TABLE
}

rows() { # NAME or NAME* | ...
  experiments | grep -v '^#' | while IFS='|' read -r name full quick; do echo "${name// /}|$full|$quick"; done
}

quick=false sample=false names=() options=()
while [ $# -gt 0 ]; do
  case $1 in
    list) rows | while IFS='|' read -r name full _; do printf '%-24s %s\n' "${name%\*}" "simsgd train$full"; done; exit ;;
    --quick) quick=true ;;
    --all) names+=("") ;;
    --sample) sample=true ;;
    -h | --help) sed -n '2,14s/^# \{0,1\}//p' "$0"; exit ;;
    -*) options=("$@"); break ;;
    *) names+=("$1") ;;
  esac
  shift
done
if [ ${#names[@]} -eq 0 ] && ! $sample; then sed -n '2,14s/^# \{0,1\}//p' "$0"; exit 2; fi

folder=${RUNS:-runs/experiments}
$quick && folder=$folder-quick
chosen=()
while IFS='|' read -r name full fast; do
  wanted=false
  case $name in *\*) wanted=$sample ;; esac
  name=${name%\*}
  for asked in ${names[@]+"${names[@]}"}; do
    case $name in "$asked"*) wanted=true ;; esac
  done
  if $quick; then full="$full $fast"; fi
  if $wanted; then chosen+=("$name|$full"); fi
done < <(rows)
if [ ${#chosen[@]} -eq 0 ]; then echo "no experiment is named ${names[*]}; see: $0 list" >&2; exit 2; fi

for entry in "${chosen[@]}"; do
  name=${entry%%|*}
  read -ra words <<<"${entry#*|}"
  for seed in ${SEEDS:-0}; do
    if [ -e "$folder/$name-seed$seed" ]; then
      simsgd train --quiet --resume "$folder/$name-seed$seed"
    else
      simsgd train --quiet --runs-dir "$folder" --name "$name-seed$seed" --seed "$seed" \
        "${words[@]}" ${options[@]+"${options[@]}"}
    fi
    echo "$folder/$name-seed$seed"
  done
done

python - "$folder" "${chosen[@]%%|*}" <<'TABLE'
"""Print means over seeds of what the runs in a folder ended with."""
import sys
from pathlib import Path

import pandas as pd

import simsgd

rows = []
for name in sys.argv[2:]:
    for folder in sorted(Path(sys.argv[1]).glob(f"{name}-seed*")):
        run = simsgd.Run(folder)
        within = run.evaluations
        last = within.iloc[-1]
        measure, value = ["perplexity", last.val_perplexity] if "val_perplexity" in last else ["error@1 (%)", last.val_error1]
        before = within.iloc[-2] if len(within) > 1 else 0 * last
        steady = (last.dense_bytes - before.dense_bytes) / (last.payload_bytes - before.payload_bytes)
        rows.append({"experiment": name, "measure": measure, "value": value,
                     "consensus": last.consensus_distance, "sent (MiB)": last.payload_bytes / 2**20,
                     "ratio": last.ratio, "ratio at the end": steady, "time (s)": run.seconds})
table = pd.DataFrame(rows).groupby(["experiment", "measure"], sort=False)
shown = table.mean().round(2)
shown.insert(1, "least to most", table["value"].agg(lambda v: f"{v.min():.1f} to {v.max():.1f}"))
print()
print("\n".join("| " + " | ".join(map(str, row)) + " |" for row in [
    ["experiment", "measure", *shown.columns], ["---"] * (2 + len(shown.columns)),
    *[[*index, *values] for index, values in zip(shown.index, shown.astype(str).values.tolist())],
]))
TABLE

case " ${chosen[*]%%|*}" in *" lowcomm-"*) python - "$folder" <<'TABLE' ;; esac
"""Print what methods that send seldom or little send until all have come to the same loss."""
import sys
from pathlib import Path

import pandas as pd

import simsgd

runs = [simsgd.Run(folder) for folder in sorted(Path(sys.argv[1]).glob("lowcomm-*"))]
within = {run.name: run.evaluations for run in runs}
loss = max(table["val_loss"].min() for table in within.values())  # that all came to
rows = []
for run in runs:
    reached = within[run.name].query("val_loss <= @loss").iloc[0]
    prices = simsgd.network(run.folder, ["wan", "1gbe"]).set_index("network")["total_ms"]
    rows.append({"run": run.name, "loss": f"{run.last.val_loss:.4f}",
                 "sent (MiB)": f"{run.last.payload_bytes / 2**20:.3f}",
                 "most in a step (KiB)": f"{run.steps['payload_bytes_max'].max() / 2**10:.1f}",
                 f"sent until {loss:.4f} (MiB)": f"{reached.payload_bytes / 2**20:.3f}",
                 "steps until then": int(reached.step),
                 "s on wan": f"{prices['wan'] * len(run.steps) / 1000:.1f}",
                 "s on 1gbe": f"{prices['1gbe'] * len(run.steps) / 1000:.1f}"})
table = pd.DataFrame(rows)
print()
print("\n".join("| " + " | ".join(map(str, row)) + " |" for row in [
    list(table.columns), ["---"] * len(table.columns), *table.astype(str).values.tolist()]))
output = Path(sys.argv[1]) / "lowcomm.png"
simsgd.plot_results(runs, x="bytes", y=["val_loss"], output=output, logx=True)
print(output)
TABLE
