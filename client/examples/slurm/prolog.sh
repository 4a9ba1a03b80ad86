#!/bin/sh
# A Prolog= of slurm.conf(5): a job starts on a node only if the node's commd serves and does not drain. slurmd runs
# this as root on each node before the job's first step. If it fails, Slurm drains the node and requeues the job.
#
#   slurm.conf: Prolog=/etc/slurm/prolog.d/commd.sh
#
# Other nodes of the cluster are not asked: one that is down must not take healthy nodes out of service.
#
# COMMD_PROLOG_WAIT_S: how long to wait for commd (default 20). slurmd kills a prolog after PrologEpilogTimeout.
set -eu

commctl=$(command -v commctl || echo /usr/bin/commctl)
left_s=${COMMD_PROLOG_WAIT_S:-20}

until said=$("$commctl" health answers 2>&1); do
    if [ "$left_s" -le 0 ]; then
        echo "print commd on $(hostname): $said"
        exit 1
    fi
    sleep 1
    left_s=$((left_s - 1))
done
said=$("$commctl" health drain 2>&1) || {
    echo "print commd on $(hostname): $said"
    exit 1
}
