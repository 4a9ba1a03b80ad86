#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "client/lib/environment.h"

/* What launchers set, and what comm_init_env makes of it. */

#define VARIABLES_MAX 14
#define UNKNOWN UINT32_MAX

/* Keeps only what tells cmocka how to print. */
static void clear_environment(void)
{
    const char *given = getenv("CMOCKA_MESSAGE_OUTPUT");
    char output[32] = "";
    (void)snprintf(output, sizeof output, "%s", given != NULL ? given : "");
    clearenv();
    if (output[0] != '\0') {
        assert_int_equal(setenv("CMOCKA_MESSAGE_OUTPUT", output, 1), 0);
    }
}

static void set_all(const char *const variables[VARIABLES_MAX])
{
    clear_environment();
    for (int i = 0; i < VARIABLES_MAX && variables[i] != NULL; i++) {
        char text[400];
        assert_true(strlen(variables[i]) < sizeof text);
        strcpy(text, variables[i]);
        char *value = strchr(text, '=');
        *value = '\0';
        assert_int_equal(setenv(text, value + 1, 1), 0);
    }
}

#define SLURM_STEP "SLURM_JOB_ID=77", "SLURM_STEP_ID=3", "SLURM_PROCID=5", "SLURM_STEP_NUM_TASKS=8"
#define SLURM_BATCH "SLURM_JOB_ID=77", "SLURM_PROCID=0", "SLURM_NTASKS=8"

static const struct {
    const char *variables[VARIABLES_MAX];
    const char *launcher;
    uint32_t rank, size, local_rank; /* UNKNOWN: none */
    const char *name;
} good[] = {
    {{"COMMD_RANK=2", "COMMD_SIZE=4", "COMMD_LOCAL_RANK=1", "COMMD_JOB=j.9f"},
     "commctl run",
     2,
     4,
     1,
     "commctl:j.9f:0:world"},
    {{"COMMD_RANK=0", "COMMD_SIZE=1", "COMMD_JOB=j", "COMMD_RESTART=4"},
     "commctl run",
     0,
     1,
     UNKNOWN,
     "commctl:j:4:world"},
    {{"RANK=3", "WORLD_SIZE=16", "LOCAL_RANK=3", "TORCHELASTIC_RUN_ID=none", "TORCHELASTIC_RESTART_COUNT=2",
      "MASTER_ADDR=a", "MASTER_PORT=29500"},
     "torchrun",
     3,
     16,
     3,
     "torchrun:none.29500:2:world"},
    {{"OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_LOCAL_RANK=0",
      "PMIX_NAMESPACE=prterun-a-71@1"},
     "Open MPI",
     1,
     2,
     0,
     "openmpi:prterun-a-71@1:0:world"},
    {{"PMI_RANK=1", "PMI_SIZE=2", "PMI_JOBID=4.0", "MPI_LOCALRANKID=1"}, "PMI", 1, 2, 1, "pmi:4.0:0:world"},
    {{"PMI_RANK=1", "PMI_SIZE=2", "I_MPI_HYDRA_UUID=ab-1"}, "PMI", 1, 2, UNKNOWN, "pmi:ab-1:0:world"},
    {{"PMI_RANK=1", "PMI_SIZE=2", "SLURM_JOB_ID=9", "SLURM_RESTART_COUNT=1"},
     "PMI",
     1,
     2,
     UNKNOWN,
     "pmi:9:1:world"},
    {{"PALS_RANKID=7", "PMI_RANK=7", "PMI_SIZE=12", "PALS_LOCAL_RANKID=3", "PALS_APID=ab-cd", "PMI_JOBID=5"},
     "PALS",
     7,
     12,
     3,
     "pals:ab-cd:0:world"},
    {{SLURM_STEP, "SLURM_LOCALID=1"}, "Slurm", 5, 8, 1, "slurm:77.3:0:world"},
    {{SLURM_STEP, "SLURM_NTASKS=99"}, "Slurm", 5, 8, UNKNOWN, "slurm:77.3:0:world"},
    {{SLURM_STEP, "SLURM_RESTART_COUNT=6"}, "Slurm", 5, 8, UNKNOWN, "slurm:77.3:6:world"},
    {{SLURM_STEP, "COMMD_JOB=night"}, "Slurm", 5, 8, UNKNOWN, "slurm:night.3:0:world"},
    {{"RANK=1", "WORLD_SIZE=2", "MASTER_ADDR=head", "MASTER_PORT=5000"},
     "env://",
     1,
     2,
     UNKNOWN,
     "env:head.5000:0:world"},
    {{"RANK=1", "WORLD_SIZE=2", "COMMD_JOB=pods"}, "env://", 1, 2, UNKNOWN, "env:pods:0:world"},
    /* The innermost launcher counts: commctl run and mpiexec in a batch script, torchrun in srun. */
    {{SLURM_BATCH, "COMMD_RANK=1", "COMMD_SIZE=4", "COMMD_JOB=j"},
     "commctl run",
     1,
     4,
     UNKNOWN,
     "commctl:j:0:world"},
    {{SLURM_BATCH, "OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=2", "PMIX_NAMESPACE=n"},
     "Open MPI",
     1,
     2,
     UNKNOWN,
     "openmpi:n:0:world"},
    {{SLURM_STEP, "RANK=9", "WORLD_SIZE=16", "LOCAL_RANK=1", "TORCHELASTIC_RUN_ID=id", "MASTER_PORT=1"},
     "torchrun",
     9,
     16,
     1,
     "torchrun:id.1:0:world"},
    {{SLURM_STEP, "PMI_RANK=5", "PMI_SIZE=8", "PMI_JOBID=77.3"}, "PMI", 5, 8, UNKNOWN, "pmi:77.3:0:world"},
    {{SLURM_STEP, "RANK=1", "WORLD_SIZE=2"}, "Slurm", 5, 8, UNKNOWN, "slurm:77.3:0:world"},
    {{SLURM_STEP, "OMPI_COMM_WORLD_RANK=1", "COMMD_LAUNCHER=slurm"},
     "Slurm",
     5,
     8,
     UNKNOWN,
     "slurm:77.3:0:world"},
    /* What is empty is not set. What cannot be in a name is replaced. */
    {{SLURM_STEP, "COMMD_RANK=", "COMMD_JOB=", "SLURM_RESTART_COUNT="},
     "Slurm",
     5,
     8,
     UNKNOWN,
     "slurm:77.3:0:world"},
    {{"COMMD_RANK=0", "COMMD_SIZE=1", "COMMD_JOB=my \xc3\xa9 job"},
     "commctl run",
     0,
     1,
     UNKNOWN,
     "commctl:my____job:0:world"},
};

static void test_launchers(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        struct environment found;
        set_all(good[i].variables);
        comm_result_t result = environment_read("world", &found);
        if (result != COMM_OK) {
            fail_msg("row %zu: %s", i, comm_last_error());
        }
        assert_string_equal(found.launcher, good[i].launcher);
        assert_string_equal(found.name, good[i].name);
        assert_int_equal(found.rank, good[i].rank);
        assert_int_equal(found.size, good[i].size);
        assert_int_equal(found.has_local_rank ? found.local_rank : UNKNOWN, good[i].local_rank);
    }
}

static const struct {
    const char *variables[VARIABLES_MAX];
    comm_result_t result;
    const char *says;
} bad[] = {
    {{"PATH=/bin"},
     COMM_NOT_FOUND,
     "no launcher has set this process's rank and size: start it by commctl run"},
    {{"COMMD_RANK=0", "COMMD_JOB=j"},
     COMM_INVALID_ARGUMENT,
     "commctl run: COMMD_SIZE is not set, but COMMD_RANK is"},
    {{"COMMD_SIZE=2", "COMMD_JOB=j"}, COMM_INVALID_ARGUMENT, "COMMD_RANK is not set, but COMMD_SIZE is"},
    {{"COMMD_RANK=0", "COMMD_SIZE=1"}, COMM_INVALID_ARGUMENT, "COMMD_JOB is not set"},
    {{"COMMD_RANK=2", "COMMD_SIZE=2", "COMMD_JOB=j"},
     COMM_INVALID_ARGUMENT,
     "COMMD_RANK=2 contradicts COMMD_SIZE=2"},
    {{"COMMD_RANK=-1", "COMMD_SIZE=2", "COMMD_JOB=j"},
     COMM_INVALID_ARGUMENT,
     "COMMD_RANK=-1: expected a number, 0 to 65536"},
    {{"COMMD_RANK=0x1", "COMMD_SIZE=2", "COMMD_JOB=j"},
     COMM_INVALID_ARGUMENT,
     "COMMD_RANK=0x1: expected a number"},
    {{"COMMD_RANK=4294967296", "COMMD_SIZE=2"}, COMM_INVALID_ARGUMENT, "COMMD_RANK=4294967296: expected"},
    {{"COMMD_RANK=99999999999999999999999", "COMMD_SIZE=2"}, COMM_INVALID_ARGUMENT, ": expected a number"},
    {{"COMMD_RANK=0", "COMMD_SIZE=0", "COMMD_JOB=j"},
     COMM_INVALID_ARGUMENT,
     "COMMD_RANK=0 contradicts COMMD_SIZE=0"},
    {{"COMMD_RANK=0", "COMMD_SIZE=2", "COMMD_LOCAL_RANK=2", "COMMD_JOB=j"},
     COMM_INVALID_ARGUMENT,
     "COMMD_LOCAL_RANK=2 contradicts COMMD_SIZE=2"},
    {{"TORCHELASTIC_RUN_ID=a", "RANK=1"},
     COMM_INVALID_ARGUMENT,
     "torchrun: WORLD_SIZE is not set, but TORCHELASTIC_RUN_ID is"},
    {{"TORCHELASTIC_RUN_ID=a", "RANK=1", "WORLD_SIZE=2"}, COMM_INVALID_ARGUMENT, "MASTER_PORT is not set"},
    {{SLURM_BATCH},
     COMM_INVALID_ARGUMENT,
     "Slurm: SLURM_STEP_ID is not set, but SLURM_PROCID is; a batch script is no rank"},
    {{"SLURM_PROCID=1", "SLURM_STEP_ID=0", "SLURM_JOB_ID=1"},
     COMM_INVALID_ARGUMENT,
     "SLURM_STEP_NUM_TASKS or SLURM_NTASKS is not set"},
    {{"PMI_RANK=0", "PMI_SIZE=1"},
     COMM_INVALID_ARGUMENT,
     "I_MPI_HYDRA_UUID is not set, but PMI_RANK is; set COMMD_JOB to a text"},
    {{"OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=1"}, COMM_INVALID_ARGUMENT, "PMIX_NAMESPACE"},
    {{SLURM_STEP, "COMMD_LAUNCHER=mpirun"},
     COMM_INVALID_ARGUMENT,
     "COMMD_LAUNCHER=mpirun: expected torchrun, commctl"},
    {{SLURM_STEP, "COMMD_LAUNCHER=pmi"}, COMM_INVALID_ARGUMENT, "PMI: PMI_RANK is not set"},
};

static void test_what_is_missing_or_contradicts(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct environment found;
        set_all(bad[i].variables);
        assert_int_equal(environment_read("world", &found), bad[i].result);
        if (strstr(comm_last_error(), bad[i].says) == NULL) {
            fail_msg("row %zu: %s", i, comm_last_error());
        }
    }
}

/* Long names are cut, and differ where what was cut differs. */
static void test_long_names(void **state)
{
    (void)state;
    char job[300] = "COMMD_JOB=";
    struct environment first, second;
    memset(job + 10, 'x', 250);
    job[260] = '\0';
    set_all((const char *const[VARIABLES_MAX]){"COMMD_RANK=0", "COMMD_SIZE=1", job});
    assert_int_equal(environment_read("one", &first), COMM_OK);
    assert_int_equal(environment_read("two", &second), COMM_OK);
    assert_int_equal(strlen(first.name), COMM_NAME_MAX_BYTES);
    assert_int_equal(strlen(second.name), COMM_NAME_MAX_BYTES);
    assert_string_not_equal(first.name, second.name);
    job[11] = 'y';
    set_all((const char *const[VARIABLES_MAX]){"COMMD_RANK=0", "COMMD_SIZE=1", job});
    assert_int_equal(environment_read("one", &second), COMM_OK);
    assert_string_not_equal(first.name, second.name);
}

/* In a child of a process with the name of Hydra's: its rank, and the exit code 0 if the job is known. */
static void child_of_hydra(bool shell_between, const char *ranks_here, char job[ENVIRONMENT_JOB_BYTES])
{
    int ends[2], status;
    assert_int_equal(pipe(ends), 0);
    setenv("MPI_LOCALNRANKS", ranks_here, 1);
    prctl(PR_SET_NAME, "hydra_pmi_proxy");
    pid_t child = fork();
    if (child == 0 && shell_between) {
        prctl(PR_SET_NAME, "sh");
        pid_t rank = fork();
        if (rank != 0) {
            waitpid(rank, &status, 0);
            _exit(0);
        }
    }
    if (child == 0) {
        char found[ENVIRONMENT_JOB_BYTES] = "";
        (void)hydra_find_job(4, found);
        _exit(write(ends[1], found, sizeof found) == (ssize_t)sizeof found ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(read(ends[0], job, ENVIRONMENT_JOB_BYTES), ENVIRONMENT_JOB_BYTES);
    prctl(PR_SET_NAME, "test");
    close(ends[0]);
    close(ends[1]);
}

static void test_the_job_of_hydra(void **state)
{
    (void)state;
    char expected[32], job[ENVIRONMENT_JOB_BYTES], again[ENVIRONMENT_JOB_BYTES];
    snprintf(expected, sizeof expected, "hydra-%d-", (int)getpid());
    child_of_hydra(false, "4", job);
    assert_ptr_equal(strstr(job, expected), job);
    assert_true(strtoull(job + strlen(expected), NULL, 10) > 0);
    child_of_hydra(true, "4", again);
    assert_string_equal(job, again);
    child_of_hydra(false, "2", job); /* the others are on other nodes, with proxies of their own */
    assert_string_equal(job, "");
    assert_false(hydra_find_job(4, job)); /* no such ancestor */
    setenv("MPI_LOCALNRANKS", "4", 1);
    assert_false(hydra_find_job(4, job));
}

/* The call itself, without a connection. */
static void test_the_call(void **state)
{
    (void)state;
    comm_t *comm = (comm_t *)&comm;
    clear_environment();
    assert_int_equal(comm_init_env(NULL, NULL, NULL), COMM_INVALID_ARGUMENT);
    assert_int_equal(comm_init_env(NULL, NULL, &comm), COMM_NOT_FOUND);
    assert_null(comm);
    assert_non_null(strstr(comm_last_error(), "comm_init_env: no launcher"));
    set_all((const char *const[VARIABLES_MAX]){"COMMD_RANK=0", "COMMD_SIZE=1", "COMMD_JOB=j"});
    assert_int_equal(comm_init_env(NULL, NULL, &comm), COMM_INVALID_ARGUMENT);
    assert_non_null(strstr(comm_last_error(), "the client is a null pointer"));
    comm_env_options_t options = COMM_ENV_OPTIONS_INIT;
    options.device = COMM_DEVICE_LOCAL_RANK;
    assert_int_equal(comm_init_env(NULL, &options, &comm), COMM_INVALID_ARGUMENT);
    assert_non_null(strstr(comm_last_error(), "no local rank is set"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_launchers),  cmocka_unit_test(test_what_is_missing_or_contradicts),
        cmocka_unit_test(test_long_names), cmocka_unit_test(test_the_job_of_hydra),
        cmocka_unit_test(test_the_call),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
