#!/bin/bash
# A batch script: one rank for each GPU. comm_init_env reads what srun sets, so the program needs no argument. Its
# communicator's name holds the job, the step and the restart count. So a job that is requeued never meets its old
# self.
#
#   sbatch client/examples/slurm/job.sh ./program [ARGUMENT...]
#
#SBATCH --job-name=commd-example
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=4
#SBATCH --time=00:30:00
#SBATCH --requeue
set -eu

# Wait for a commd that is being restarted, up to a minute, in place of failing at once.
export COMMD_WAIT_MS=60000

# Each rank sees all GPUs of the node and uses the one of its local rank (COMM_DEVICE_LOCAL_RANK). Without
# --gpu-bind=none, Slurm may show each rank one GPU alone; that works as well.
exec srun --kill-on-bad-exit=1 --gpu-bind=none "$@"
