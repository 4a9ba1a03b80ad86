/*
 * Data-parallel training that goes on when ranks, daemons or nodes are lost, and takes in processes that come
 * later. Start as many of these as you like, at any time, on any node:
 *
 *   elastic [--name JOB] [--least N] [--most N] [--steps N] [--pause-ms N]
 *
 * Each step takes the gradient of a batch, which the ranks share. The loss after so many steps depends on the
 * number of ranks only by rounding. What is needed to go on is in go_on and take_in below.
 */
#include <commclient.h>

#include <getopt.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { WEIGHTS = 64, BATCH = 512, SCALE = BATCH / 16, GROW_STEPS = 10 };
#define RATE 0.02
#define NOISE 0.1
#define WAIT_MS 60000u

struct job {
    const char *name;
    uint32_t least, most;
    uint64_t steps;
    long pause_ms;
};

/* What a newcomer gets from the others. */
struct state {
    uint64_t step;
    double loss;
    double weights[WEIGHTS];
};

/* --- Going on --- */

/* Rank 0 has been there before, unless all ranks are new: survivors keep their order. */
static comm_result_t share(comm_t *comm, struct state *state)
{
    comm_result_t result = comm_broadcast(comm, state, sizeof *state, COMM_U8, 0, NULL);
    return result == COMM_OK ? comm_sync(comm, 0) : result;
}

static comm_result_t go_on(comm_t **comm, struct state *state)
{
    comm_result_t result = comm_recover(comm, NULL);
    return result == COMM_OK ? share(*comm, state) : result;
}

static comm_result_t take_in(comm_t **comm, struct state *state)
{
    comm_t *next;
    comm_result_t result = comm_grow(*comm, NULL, &next);
    if (result != COMM_OK || next == NULL) {
        return result;
    }
    comm_destroy(*comm);
    *comm = next;
    return share(next, state);
}

/* Whether the survivors may go on after this. */
static int is_loss(comm_result_t result)
{
    return result == COMM_RANK_LOST || result == COMM_NODE_LOST;
}

/* --- Training --- */

/* A number between -1 and 1: the same on every machine. */
static double chance(uint64_t number)
{
    number += UINT64_C(0x9e3779b97f4a7c15);
    number = (number ^ (number >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    number = (number ^ (number >> 27)) * UINT64_C(0x94d049bb133111eb);
    number ^= number >> 31;
    return (double)(int64_t)number / 9223372036854775808.0;
}

/* Adds the gradient of one sample; returns its loss. */
static double add_sample(const struct state *state, uint64_t sample, double *gradient)
{
    double inputs[WEIGHTS], error = NOISE * chance(~sample);
    for (int i = 0; i < WEIGHTS; i++) {
        inputs[i] = chance(sample * WEIGHTS + (uint64_t)i);
        error += inputs[i] * (state->weights[i] - chance((uint64_t)i));
    }
    for (int i = 0; i < WEIGHTS; i++) {
        gradient[i] += error * inputs[i];
    }
    return error * error;
}

/* If it fails, the state is that before the step. */
static comm_result_t train(comm_t *comm, struct state *state)
{
    double sums[WEIGHTS + 1] = {0};
    for (uint64_t i = comm_rank(comm); i < BATCH; i += comm_size(comm)) {
        sums[WEIGHTS] += add_sample(state, state->step * BATCH + i, sums);
    }
    comm_result_t result = comm_all_reduce(comm, sums, sums, WEIGHTS + 1, COMM_F64, COMM_SUM, NULL);
    result = result == COMM_OK ? comm_sync(comm, 0) : result;
    if (result != COMM_OK) {
        return result;
    }
    for (int i = 0; i < WEIGHTS; i++) {
        state->weights[i] -= RATE * sums[i] / SCALE;
    }
    state->loss = sums[WEIGHTS] / BATCH;
    state->step++;
    return COMM_OK;
}

static void say(const comm_t *comm, const struct state *state, const char *what)
{
    printf("rank %u of %u, step %llu: %s\n", comm_rank(comm), comm_size(comm),
           (unsigned long long)state->step, what);
    fflush(stdout);
}

/* Trains until the last step, or until this process cannot go on. */
static comm_result_t run(comm_t **comm, const struct job *job, struct state *state)
{
    const struct timespec pause = {job->pause_ms / 1000, job->pause_ms % 1000 * 1000000};
    char text[300];
    comm_result_t result = share(*comm, state);
    while (result == COMM_OK && state->step < job->steps) {
        uint32_t size = comm_size(*comm);
        result = train(*comm, state);
        if (result == COMM_OK && state->step % GROW_STEPS == 0) {
            result = take_in(comm, state);
        }
        while (is_loss(result)) {
            snprintf(text, sizeof text, "goes on after: %.250s", comm_last_error());
            say(*comm, state, text);
            result = go_on(comm, state);
        }
        if (result == COMM_OK && (state->step % 50 == 0 || comm_size(*comm) != size)) {
            snprintf(text, sizeof text, "loss %.6f", state->loss);
            say(*comm, state, text);
        }
        (void)nanosleep(&pause, NULL);
    }
    return result;
}

/* --- The process --- */

static int usage(void)
{
    fprintf(stderr, "usage: elastic [--name JOB] [--least N] [--most N] [--steps N] [--pause-ms N]\n");
    return 2;
}

static int parse(int argc, char **argv, struct job *job)
{
    static const struct option options[] = {
        {"name", required_argument, NULL, 'n'},     {"least", required_argument, NULL, 'l'},
        {"most", required_argument, NULL, 'm'},     {"steps", required_argument, NULL, 's'},
        {"pause-ms", required_argument, NULL, 'p'}, {NULL, 0, NULL, 0}};
    for (int option; (option = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        char *end = NULL;
        unsigned long long number = option == 'n' || option == '?' ? 0 : strtoull(optarg, &end, 10);
        if (option == '?' || (end != NULL && (end == optarg || *end != '\0'))) {
            return 0;
        }
        job->name = option == 'n' ? optarg : job->name;
        job->least = option == 'l' ? (uint32_t)number : job->least;
        job->most = option == 'm' ? (uint32_t)number : job->most;
        job->steps = option == 's' ? number : job->steps;
        job->pause_ms = option == 'p' ? (long)number : job->pause_ms;
    }
    return optind == argc;
}

/* Once through: from joining the job to the last step. */
static comm_result_t take_part(comm_client_t *client, const struct job *job, struct state *state)
{
    comm_t *comm = NULL;
    comm_result_t result = comm_join(client, job->name, job->least, job->most, NULL, &comm);
    if (result == COMM_OK) {
        result = run(&comm, job, state);
    }
    if (result == COMM_OK) {
        char text[64];
        snprintf(text, sizeof text, "ends with loss %.12g", state->loss);
        say(comm, state, text);
    } else {
        fprintf(stderr, "elastic: %s: %s\n", comm_result_text(result), comm_last_error());
    }
    comm_destroy(comm);
    return result;
}

int main(int argc, char **argv)
{
    struct job job = {.name = "elastic", .least = 1, .most = 64, .steps = 500, .pause_ms = 10};
    struct state state = {.step = 0};
    comm_open_options_t open = COMM_OPEN_OPTIONS_INIT;
    comm_client_t *client = NULL;
    if (!parse(argc, argv, &job)) {
        return usage();
    }
    open.wait_ms = WAIT_MS;
    comm_result_t result = comm_client_open(&open, &client);
    if (result == COMM_OK) {
        result = take_part(client, &job, &state);
    }
    while (result == COMM_DAEMON_LOST || result == COMM_ABORTED) { /* it comes back as a newcomer */
        result = comm_client_reopen(&client, &open);
        result = result == COMM_OK ? take_part(client, &job, &state) : result;
    }
    if (client == NULL) {
        fprintf(stderr, "elastic: %s: %s\n", comm_result_text(result), comm_last_error());
    }
    comm_client_close(client);
    return result == COMM_OK ? EXIT_SUCCESS : EXIT_FAILURE;
}
