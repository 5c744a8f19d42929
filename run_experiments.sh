#!/usr/bin/env bash
# The experiments of the README: ./run_experiments.sh
# Runs go to runs/readme, or to $RUNS; seeds are 0, 1 and 2, or those in $SEEDS. A run that is
# there already is gone on with, so the script may be stopped and started again.
set -euo pipefail
RUNS=${RUNS:-runs/readme}

train() { # train NAME OPTION...: one run for each seed
  for seed in ${SEEDS:-0 1 2}; do
    if [ -e "$RUNS/$1-seed$seed" ]; then
      simsgd train --resume "$RUNS/$1-seed$seed"
    else
      simsgd train --runs-dir "$RUNS" --name "$1-seed$seed" --seed "$seed" "${@:2}"
    fi
  done
}

train dense --workers 16
train prune-none --workers 16 --prune 0.999 --memory none
train prune-residual --workers 16 --prune 0.999 --memory residual
train prune-dgc --workers 16 --prune 0.999
train prune-none-cold --workers 16 --prune 0.999 --memory none --no-warmup
train prune-dgc-cold --workers 16 --prune 0.999 --no-warmup
train dense-4-workers --workers 4 --global-batch-size 128
train prune-dgc-4-workers --workers 4 --global-batch-size 128 --prune 0.999
train dense-64-workers --workers 64 --global-batch-size 128
train prune-dgc-64-workers --workers 64 --global-batch-size 128 --prune 0.999

simsgd plot-results "$RUNS"/{dense,prune-none,prune-residual,prune-dgc}-seed0 -x epoch -o "$RUNS/error-by-epoch.png"
simsgd plot-results "$RUNS"/{dense,prune-none,prune-residual,prune-dgc}-seed0 -x bytes -o "$RUNS/error-by-bytes.png"
simsgd plot-results "$RUNS"/prune-dgc{,-cold,-4-workers,-64-workers}-seed0 -x bytes -o "$RUNS/workers-and-warmup.png"

python - "$RUNS" <<'TABLE'
"""Print means over seeds of what the runs in a folder ended with."""
import sys
from pathlib import Path

import pandas as pd

import simsgd

rows = []
for folder in sorted(Path(sys.argv[1]).glob("*-seed*")):
    run = simsgd.Run(folder)
    last, before = run.epochs.iloc[-1], run.epochs.iloc[-2]
    steady = (last.dense_bytes - before.dense_bytes) / (last.payload_bytes - before.payload_bytes)
    rows.append(
        {
            "experiment": folder.name.rpartition("-seed")[0],
            "error@1 (%)": last.val_error1,
            "sent (MiB)": last.payload_bytes / 2**20,
            "ratio": last.ratio,
            "ratio at the end": steady,
            "time (s)": run.epochs.seconds.sum(),
        }
    )
table = pd.DataFrame(rows).groupby("experiment", sort=False)
shown = table.mean()
shown.insert(1, "least to most", table["error@1 (%)"].agg(lambda e: f"{e.min():.1f} to {e.max():.1f}"))
print(shown.round(2).to_string())
TABLE
