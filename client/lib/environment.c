#include "client/lib/environment.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/lib/internal.h"

#define LAUNCHER_ENVIRONMENT "COMMD_LAUNCHER"
#define JOB_ENVIRONMENT "COMMD_JOB"
#define NAMES_MAX 6
#define HASH_DIGITS 16

/*
 * What a launcher sets. Of several names, the first that is set counts. If none of `marks` is set, the
 * launcher has not started this process.
 */
struct launcher {
    const char *name;       /* in messages */
    const char *short_name; /* in names of communicators, and in COMMD_LAUNCHER */
    const char *marks[NAMES_MAX];
    const char *ranks[NAMES_MAX];
    const char *sizes[NAMES_MAX];
    const char *local_ranks[NAMES_MAX];
    const char *jobs[NAMES_MAX];
    const char *step;    /* null: the job has no steps */
    bool job_is_enough;  /* with COMMD_JOB, the step may be missing */
    const char *restart; /* null: a restarted job gets another number; 0 if not set */
    /* Another way to know the job; null: none. */
    bool (*find_job)(uint32_t size, char job[ENVIRONMENT_JOB_BYTES]);
    const char
        *batch_jobs[NAMES_MAX]; /* the last way: of the batch system, whose job may start several of these */
    const char *advice;         /* added if something is missing; null: none */
};

/*
 * A launcher's variables stay set in the processes that its processes start. So the launcher that usually
 * runs inside the others comes first: commctl run and torchrun inside an allocation or a container, mpiexec
 * inside an allocation, the batch system outside. commctl run removes what torchrun set, so torchrun inside
 * commctl run comes first, and commctl run inside torchrun does, too. PALS sets PMI's variables as well; so
 * does Slurm (srun --mpi=pmi2), where both say the same.
 */
static const struct launcher launchers[] = {
    {.name = "torchrun",
     .short_name = "torchrun",
     .marks = {"TORCHELASTIC_RUN_ID"},
     .ranks = {"RANK"},
     .sizes = {"WORLD_SIZE"},
     .local_ranks = {"LOCAL_RANK"},
     .jobs = {JOB_ENVIRONMENT, "TORCHELASTIC_RUN_ID"},
     .step = "MASTER_PORT", /* the run id is "none" unless --rdzv-id is given */
     .job_is_enough = true,
     .restart = "TORCHELASTIC_RESTART_COUNT"},
    {.name = "commctl run",
     .short_name = "commctl",
     .marks = {"COMMD_RANK", "COMMD_SIZE"},
     .ranks = {"COMMD_RANK"},
     .sizes = {"COMMD_SIZE"},
     .local_ranks = {"COMMD_LOCAL_RANK"},
     .jobs = {JOB_ENVIRONMENT},
     .restart = "COMMD_RESTART"},
    {.name = "PALS",
     .short_name = "pals",
     .marks = {"PALS_RANKID"},
     .ranks = {"PALS_RANKID"},
     .sizes = {"PALS_SIZE", "PMI_SIZE"},
     .local_ranks = {"PALS_LOCAL_RANKID", "PMI_LOCAL_RANK"},
     .jobs = {JOB_ENVIRONMENT, "PALS_APID"}},
    {.name = "Open MPI",
     .short_name = "openmpi",
     .marks = {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
     .ranks = {"OMPI_COMM_WORLD_RANK"},
     .sizes = {"OMPI_COMM_WORLD_SIZE"},
     .local_ranks = {"OMPI_COMM_WORLD_LOCAL_RANK"},
     .jobs = {JOB_ENVIRONMENT, "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"}},
    {.name = "PMI",
     .short_name = "pmi",
     .marks = {"PMI_RANK", "PMI_SIZE"},
     .ranks = {"PMI_RANK"},
     .sizes = {"PMI_SIZE"},
     .local_ranks = {"PMI_LOCAL_RANK", "MPI_LOCALRANKID"},
     .jobs = {JOB_ENVIRONMENT, "PMI_JOBID", "I_MPI_HYDRA_UUID"},
     .find_job = hydra_find_job,
     .batch_jobs = {"SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID"},
     .restart = "SLURM_RESTART_COUNT",
     .advice = "; set " JOB_ENVIRONMENT " to a text that is new for each job (mpiexec -genv)"},
    {.name = "Slurm",
     .short_name = "slurm",
     .marks = {"SLURM_PROCID"},
     .ranks = {"SLURM_PROCID"},
     .sizes = {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"},
     .local_ranks = {"SLURM_LOCALID"},
     .jobs = {JOB_ENVIRONMENT, "SLURM_JOB_ID"},
     .step = "SLURM_STEP_ID",
     .restart = "SLURM_RESTART_COUNT",
     .advice = "; a batch script is no rank: start ranks by srun, or by commctl run"},
    {.name = "env://",
     .short_name = "env",
     .marks = {"RANK", "WORLD_SIZE"},
     .ranks = {"RANK"},
     .sizes = {"WORLD_SIZE"},
     .local_ranks = {"LOCAL_RANK"},
     .jobs = {JOB_ENVIRONMENT, "MASTER_ADDR"},
     .step = "MASTER_PORT",
     .job_is_enough = true},
};
#define LAUNCHER_COUNT (sizeof launchers / sizeof launchers[0])

/* An empty variable counts as not set, as in a shell's ${NAME:-}. */
static const char *variable(const char *name)
{
    const char *value = name != NULL ? getenv(name) : NULL;
    return value != NULL && value[0] != '\0' ? value : NULL;
}

/* Returns the first name that is set, or null. */
static const char *first_set(const char *const names[NAMES_MAX])
{
    for (size_t i = 0; i < NAMES_MAX && names[i] != NULL; i++) {
        if (variable(names[i]) != NULL) {
            return names[i];
        }
    }
    return NULL;
}

static comm_result_t find_launcher(const struct launcher **out)
{
    const char *wish = variable(LAUNCHER_ENVIRONMENT);
    for (size_t i = 0; i < LAUNCHER_COUNT; i++) {
        const struct launcher *launcher = &launchers[i];
        if (wish != NULL ? strcmp(wish, launcher->short_name) == 0 : first_set(launcher->marks) != NULL) {
            *out = launcher;
            return COMM_OK;
        }
    }
    if (wish != NULL) {
        return error_report(COMM_INVALID_ARGUMENT,
                            LAUNCHER_ENVIRONMENT
                            "=%.40s: expected torchrun, commctl, pals, openmpi, pmi, slurm or env",
                            wish);
    }
    return error_report(
        COMM_NOT_FOUND,
        "no launcher has set this process's rank and size: start it by commctl run, torchrun, "
        "mpiexec or srun, or set COMMD_RANK, COMMD_SIZE and " JOB_ENVIRONMENT);
}

static comm_result_t missing(const struct launcher *launcher, const char *const names[NAMES_MAX])
{
    char list[160] = "";
    size_t used = 0;
    for (size_t i = 0; i < NAMES_MAX && names[i] != NULL && used < sizeof list; i++) {
        used += (size_t)snprintf(list + used, sizeof list - used, "%s%s", i > 0 ? " or " : "", names[i]);
    }
    const char *mark = first_set(launcher->marks);
    return error_report(COMM_INVALID_ARGUMENT, "%s: %s is not set%s%s%s%s", launcher->name, list,
                        mark != NULL ? ", but " : "", mark != NULL ? mark : "", mark != NULL ? " is" : "",
                        launcher->advice != NULL ? launcher->advice : "");
}

static bool parse_number(const char *text, uint32_t max, uint32_t *out)
{
    uint64_t number = 0;
    for (const char *digit = text; *digit != '\0'; digit++) {
        if (*digit < '0' || *digit > '9' || number > max) {
            return false;
        }
        number = number * 10 + (uint64_t)(*digit - '0');
    }
    *out = (uint32_t)number;
    return text[0] != '\0' && number <= max;
}

/* *which gets the name of the variable that counts. */
static comm_result_t read_number(const struct launcher *launcher, const char *const names[NAMES_MAX],
                                 const char **which, uint32_t *out)
{
    *which = first_set(names);
    if (*which == NULL) {
        return missing(launcher, names);
    }
    if (!parse_number(variable(*which), COMM_SIZE_MAX, out)) {
        return error_report(COMM_INVALID_ARGUMENT, "%s: %s=%.40s: expected a number, 0 to %d", launcher->name,
                            *which, variable(*which), COMM_SIZE_MAX);
    }
    return COMM_OK;
}

static comm_result_t read_place(const struct launcher *launcher, struct environment *out)
{
    const char *rank_name = NULL, *size_name = NULL, *local_name = NULL;
    comm_result_t result = read_number(launcher, launcher->ranks, &rank_name, &out->rank);
    if (result == COMM_OK) {
        result = read_number(launcher, launcher->sizes, &size_name, &out->size);
    }
    if (result == COMM_OK && out->rank >= out->size) {
        result =
            error_report(COMM_INVALID_ARGUMENT, "%s: %s=%u contradicts %s=%u: a rank is less than the size",
                         launcher->name, rank_name, out->rank, size_name, out->size);
    }
    out->has_local_rank = first_set(launcher->local_ranks) != NULL;
    if (result == COMM_OK && out->has_local_rank) {
        result = read_number(launcher, launcher->local_ranks, &local_name, &out->local_rank);
        if (result == COMM_OK && out->local_rank >= out->size) {
            result = error_report(COMM_INVALID_ARGUMENT,
                                  "%s: %s=%u contradicts %s=%u: a local rank is less than the size",
                                  launcher->name, local_name, out->local_rank, size_name, out->size);
        }
    }
    return result;
}

/* FNV-1a, 64 bit. It only keeps long names apart. */
static uint64_t hash_text(const char *text)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (; *text != '\0'; text++) {
        hash = (hash ^ (unsigned char)*text) * UINT64_C(0x100000001b3);
    }
    return hash;
}

/* Makes a valid name of any text. A text that is too long is cut, and gets its hash. */
static void put_name(char *full, struct environment *out)
{
    uint64_t hash = hash_text(full);
    size_t length = strlen(full);
    for (char *byte = full; *byte != '\0'; byte++) {
        *byte = *byte > ' ' && *byte <= '~' ? *byte : '_';
    }
    if (length < sizeof out->name) {
        memcpy(out->name, full, length + 1);
    } else {
        snprintf(out->name, sizeof out->name, "%.*s~%0*llx", COMM_NAME_MAX_BYTES - HASH_DIGITS - 1, full,
                 HASH_DIGITS, (unsigned long long)hash);
    }
}

/* Returns the job, in `found` or the environment; null if it is not known. */
static const char *find_job(const struct launcher *launcher, uint32_t size, char found[ENVIRONMENT_JOB_BYTES])
{
    const char *job = variable(first_set(launcher->jobs));
    if (job == NULL && launcher->find_job != NULL && launcher->find_job(size, found)) {
        job = found;
    }
    return job != NULL ? job : variable(first_set(launcher->batch_jobs));
}

static comm_result_t read_name(const struct launcher *launcher, const char *part, struct environment *out)
{
    char found[ENVIRONMENT_JOB_BYTES], full[1024];
    const char *job = find_job(launcher, out->size, found);
    const char *steps[NAMES_MAX] = {launcher->step};
    const char *step = variable(launcher->step);
    const char *restart = variable(launcher->restart);
    if (job == NULL) {
        return missing(launcher, launcher->jobs);
    }
    bool given = launcher->job_is_enough && variable(JOB_ENVIRONMENT) != NULL;
    if (launcher->step != NULL && step == NULL && !given) {
        return missing(launcher, steps);
    }
    int length =
        snprintf(full, sizeof full, "%s:%s%s%s:%s:%s", launcher->short_name, job, step != NULL ? "." : "",
                 step != NULL ? step : "", restart != NULL ? restart : "0", part);
    if (length < 0 || (size_t)length >= sizeof full) {
        return error_report(COMM_INVALID_ARGUMENT, "%s: the job's name has %zu bytes, which is too long",
                            launcher->name, strlen(job));
    }
    put_name(full, out);
    return COMM_OK;
}

comm_result_t environment_read(const char *part, struct environment *out)
{
    const struct launcher *launcher = NULL;
    *out = (struct environment){.rank = 0};
    comm_result_t result = find_launcher(&launcher);
    if (result != COMM_OK) {
        return result;
    }
    out->launcher = launcher->name;
    result = read_place(launcher, out);
    return result == COMM_OK ? read_name(launcher, part, out) : result;
}

/* A process that sees one GPU alone, as with srun --gpus-per-task, has it as number 0. */
static comm_result_t device_of(const struct environment *place, const comm_env_options_t *options,
                               int *device)
{
    int count;
    *device = options->device;
    if (options->device != COMM_DEVICE_LOCAL_RANK) {
        return COMM_OK;
    }
    if (!place->has_local_rank) {
        return error_report(COMM_INVALID_ARGUMENT,
                            "%s: no local rank is set, so COMM_DEVICE_LOCAL_RANK is no GPU", place->launcher);
    }
    comm_result_t result = gpu_count(&count);
    *device = count == 1 ? 0 : (int)place->local_rank;
    return result;
}

comm_result_t comm_init_env(comm_client_t *client, const comm_env_options_t *options, comm_t **out)
{
    comm_env_options_t given = COMM_ENV_OPTIONS_INIT;
    struct environment place;
    int device = COMM_DEVICE_HOST;
    if (out == NULL) {
        return error_report(COMM_INVALID_ARGUMENT,
                            "comm_init_env: the argument for the communicator is a null pointer");
    }
    *out = NULL;
    comm_result_t result =
        options_copy(&given, sizeof given, options, "comm_init_env", "COMM_ENV_OPTIONS_INIT");
    if (result != COMM_OK) {
        return result;
    }
    result = environment_read(given.name != NULL ? given.name : "world", &place);
    if (result == COMM_OK) {
        result = device_of(&place, &given, &device);
    }
    if (result != COMM_OK) {
        return error_within(result, "comm_init_env");
    }
    DEBUG("started by %s: rank %u of %u, \"%s\", device %d", place.launcher, place.rank, place.size,
          place.name, device);
    return comm_init(client, place.name, place.rank, place.size, device, given.init, out);
}
