#!/bin/sh
# Train on the GPUs of one or more nodes as a SLURM job: torchrun on each node, a process a GPU.
#   sbatch --nodes=2 --gpus-per-node=4 scripts/slurm/train.sh quicknat --out RUN
# Run the same command again to resume. `torchrun` must be in PATH, RUN on a disk that all nodes
# share.
#SBATCH --job-name=trinat-train
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --time=12:00:00
#SBATCH --requeue
# Signal five minutes before the time limit: the state is saved.
#SBATCH --signal=TERM@300
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=240
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
exec srun torchrun --nnodes "$SLURM_NNODES" --nproc-per-node "${SLURM_GPUS_ON_NODE:-1}" \
    --rdzv-id "$SLURM_JOB_ID" --rdzv-backend c10d \
    --rdzv-endpoint "$first:$((20000 + SLURM_JOB_ID % 20000))" \
    -m trinat train "$@" --device cuda --resume
