#!/bin/sh
# Segment many scans as a SLURM job array: each task does its part of them.
#   sbatch --array=1-20 scripts/slurm/array.sh scans/ --out labels/
#   trinat merge labels/          when all tasks have ended
# The same command again does what is missing. `trinat` must be in PATH.
#SBATCH --job-name=trinat
#SBATCH --array=1-10
#SBATCH --cpus-per-task=2
#SBATCH --mem=4G
#SBATCH --time=12:00:00
#SBATCH --requeue
# Five minutes before the time is up: the scan in hand is finished, the next ones are left.
#SBATCH --signal=B:TERM@300
# The part of this task, whatever number the array starts at. An array with gaps is refused.
first=${SLURM_ARRAY_TASK_MIN:-1}
part=$(((SLURM_ARRAY_TASK_ID - first) / ${SLURM_ARRAY_TASK_STEP:-1} + 1))
exec trinat predict "$@" --shard "$part/$SLURM_ARRAY_TASK_COUNT" --threads "${SLURM_CPUS_PER_TASK:-1}" --quiet
