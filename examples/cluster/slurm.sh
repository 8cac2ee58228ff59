#!/bin/bash
# Trains with 2 parameter servers, a chief and 4 workers on SLURM: sbatch slurm.sh
# Not run by skest's tests: adapt the partition, the paths and the environment.
#SBATCH --job-name=skest
#SBATCH --ntasks=7
#SBATCH --cpus-per-task=2
#SBATCH --mem-per-cpu=2G
#SBATCH --time=02:00:00
#SBATCH --requeue

set -euo pipefail

# The first tasks are parameter servers, the next one is the chief, the others are workers.
export SKEST_NUM_PS=2
export SKEST_PORT=2222
# What all tasks know and nobody else: a parameter server refuses others.
SKEST_SECRET=$(openssl rand -hex 32)
export SKEST_SECRET
# One thread for each process.
export OMP_NUM_THREADS=1

# One task that dies does not end the others; the job goes on from the checkpoint when
# it is requeued. --model-dir must be on a file system that all nodes see.
srun --kill-on-bad-exit=0 \
    python train.py --data "$HOME/rows/*.parquet" --model-dir "$HOME/model"
