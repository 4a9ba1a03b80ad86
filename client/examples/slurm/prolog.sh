#!/bin/sh
# A Prolog= of slurm.conf(5): a job starts on a node only if its commd serves, and all nodes of the cluster are up for
# it. slurmd runs this as root on each node before the job's first step. If it fails, Slurm drains the node and
# requeues the job.
#
#   slurm.conf: Prolog=/etc/slurm/prolog.d/commd.sh
#
# COMMD_PROLOG_WAIT_S: how long to wait for commd (default 20). slurmd kills a prolog after PrologEpilogTimeout.
set -eu

commctl=$(command -v commctl || echo /usr/bin/commctl)
wait_s=${COMMD_PROLOG_WAIT_S:-20}

if [ "$("$commctl" -f json status | grep -c '"draining": true')" != 0 ]; then
    echo "print commd on $(hostname) is draining"
    exit 1
fi
"$commctl" wait nodes --timeout "$wait_s" || {
    echo "print commd on $(hostname): not all nodes are up within $wait_s s"
    exit 1
}
