#ifndef CLIENT_LIB_ENVIRONMENT_H
#define CLIENT_LIB_ENVIRONMENT_H

#include <commclient.h>

#include <stdbool.h>
#include <stdint.h>

#include "proto/types.h"

/*
 * What a process's launcher says about it, in environment variables. Sources for the names:
 *   commctl run   client/commctl/run_environment.c
 *   torchrun      docs.pytorch.org, "torchrun (Elastic Launch)", Environment Variables
 *   PALS          HPE Cray: mpiexec(1), pals.h; PMI_SIZE is the number of ranks there
 *   Open MPI      docs.open-mpi.org, "Environment variables set by mpirun"; PMIX_NAMESPACE: PMIx standard 4.1
 *   PMI           MPICH's and Slurm's PMI-1 and PMI-2; I_MPI_HYDRA_UUID: Intel MPI
 *   Slurm         srun(1), OUTPUT ENVIRONMENT VARIABLES
 */
struct environment {
    const char *launcher; /* "Slurm"; static */
    uint32_t rank, size;
    bool has_local_rank;
    uint32_t local_rank;                /* among this job's ranks on this node */
    char name[COMM_NAME_MAX_BYTES + 1]; /* of the communicator: launcher, job, restart, and `part` */
};

/*
 * Reads the variables of the innermost launcher. COMMD_LAUNCHER names another one. part: what the program
 * calls the communicator. Errors, each with the variables at fault: COMM_NOT_FOUND (no launcher),
 * COMM_INVALID_ARGUMENT. Do not change the environment in another thread meanwhile.
 */
comm_result_t environment_read(const char *part, struct environment *out);

/* hydra.c: the job of MPICH's mpiexec, if all `size` ranks are on this node. False if it is not known. */
#define ENVIRONMENT_JOB_BYTES 64
bool hydra_find_job(uint32_t size, char job[ENVIRONMENT_JOB_BYTES]);

#endif
