#ifndef COMMCLIENT_LAUNCHER_H
#define COMMCLIENT_LAUNCHER_H

/* Rank and size from whatever started this process. Included by commclient.h; do not include it alone. */

#define COMM_DEVICE_LOCAL_RANK (-2)

typedef struct comm_env_options {
    size_t struct_size; /* COMM_ENV_OPTIONS_INIT sets it */
    int device;         /* as in comm_init, or COMM_DEVICE_LOCAL_RANK: the GPU whose number is the
                           local rank, or the only GPU that this process sees */
    const char *name;   /* what the program calls this communicator; null: "world" */
    const comm_init_options_t *init; /* may be null */
} comm_env_options_t;
#define COMM_ENV_OPTIONS_INIT                                                                                \
    {                                                                                                        \
        sizeof(struct comm_env_options), COMM_DEVICE_HOST, NULL, NULL                                        \
    }

/*
 * Joins the communicator of all processes of this job. Rank, size and job come from the environment, as the
 * launcher has set it: torchrun, commctl run, PALS, Open MPI, PMI (MPICH, Intel MPI), Slurm, or RANK,
 * WORLD_SIZE, MASTER_ADDR and MASTER_PORT set by hand. If variables of several launchers are set, the first
 * in this list counts, because it usually runs inside the others. COMMD_LAUNCHER=torchrun, commctl, pals,
 * openmpi, pmi, slurm or env names one.
 *
 * The communicator's name holds the launcher, the job, its step and restart count, and options->name. So a
 * job that is started again never meets the processes of its last run. COMMD_JOB replaces the job in the
 * name; it must be the same on all ranks. A program that makes several communicators gives each a name of its
 * own.
 *
 * options: may be null. Errors: COMM_NOT_FOUND (no launcher), COMM_INVALID_ARGUMENT (the message names the
 * variable that is missing, or the two that contradict each other), and those of comm_init.
 */
COMM_API COMM_CHECK comm_result_t comm_init_env(comm_client_t *client, const comm_env_options_t *options,
                                                comm_t **comm);

#endif
