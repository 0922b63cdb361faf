#!/bin/sh
# Train a cross-validation as a SLURM job array: each task does one view of one fold.
#   sbatch --array=0-14 scripts/slurm/folds.sh quicknat --store store --out runs/cv
# That is five folds of three views: tasks 0, 1 and 2 are coronal, axial and sagittal of fold 0.
# Run the same command again to resume. `trinat` must be in PATH, the store and runs/cv on a disk
# that all nodes share.
#SBATCH --job-name=trinat-folds
#SBATCH --array=0-14
#SBATCH --gpus-per-task=1
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=8
#SBATCH --mem=32G
#SBATCH --time=12:00:00
#SBATCH --requeue
# Signal five minutes before the time limit: the state is saved.
#SBATCH --signal=B:TERM@300
fold=$((SLURM_ARRAY_TASK_ID / 3))
case $((SLURM_ARRAY_TASK_ID % 3)) in
0) view=coronal ;;
1) view=axial ;;
2) view=sagittal ;;
esac
exec trinat train "$@" --fold "$fold" --view "$view" --resume --quiet
