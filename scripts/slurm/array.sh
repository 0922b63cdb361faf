#!/bin/sh
# Segment many scans as a SLURM job array: each task does its part of them.
#   sbatch --array=1-20 scripts/slurm/array.sh scans/ --out labels/
#   trinat merge labels/          when all tasks have ended
# Run the same command again to do what is missing. `trinat` must be in PATH.
#SBATCH --job-name=trinat
#SBATCH --array=1-10
#SBATCH --cpus-per-task=2
#SBATCH --mem=4G
#SBATCH --time=12:00:00
#SBATCH --requeue
# Signal five minutes before the time limit: the current scan is finished, no other is started.
#SBATCH --signal=B:TERM@300
# The part of this task, whatever number the array starts at. An array with gaps is refused.
first=${SLURM_ARRAY_TASK_MIN:-1}
part=$(((SLURM_ARRAY_TASK_ID - first) / ${SLURM_ARRAY_TASK_STEP:-1} + 1))
exec trinat predict "$@" --shard "$part/$SLURM_ARRAY_TASK_COUNT" --threads "${SLURM_CPUS_PER_TASK:-1}" --quiet
