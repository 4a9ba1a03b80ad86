/*
 * One rank of a job under faults: it runs operations of all kinds, checks every element, and goes on with the
 * survivors after a loss.
 *
 *   chaos_rank JOB RANK SIZE SEED MOST_BYTES PAUSE_US STATUS_FILE
 *
 * The seed says which operations come, so all ranks call the same. SIGUSR1 ends the job in order: all its
 * ranks stop after the same step. SIGUSR2 makes this rank abort the communicator. STATUS_FILE tells
 * check_chaos.py which call is under way (struct chaos_status). Each line of the output is one event: a word,
 * then KEY=VALUE fields, with the text last.
 *
 * Exit codes: 0 the job ended in order; 3 this rank cannot go on; 4 its commd is lost; 5 an element is wrong,
 * or the library refuses what it must not.
 */
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tests/chaos/chaos_rank.h"

#define FORM_TIMEOUT_MS 60000u
#define OPEN_WAIT_MS 60000u
#define SHRINK_TIMEOUT_MS 20000u
#define LOST_MAX 64u

static volatile sig_atomic_t wants_end;
static volatile sig_atomic_t wants_abort;

static void want_end(int signal_number)
{
    (void)signal_number;
    wants_end = 1;
}

static void want_abort(int signal_number)
{
    (void)signal_number;
    wants_abort = 1;
}

uint64_t chaos_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void chaos_say(const struct chaos_rank *self, const char *event, const char *format, ...)
{
    char line[4096];
    int used = snprintf(line, sizeof line, "%s t=%" PRIu64 " comm=%s/%u rank=%u ", event, chaos_now_ns(),
                        self->job, self->generation, self->first_rank);
    va_list arguments;
    va_start(arguments, format);
    used += vsnprintf(line + used, sizeof line - (size_t)used - 1, format, arguments);
    va_end(arguments);
    used = used < (int)sizeof line - 1 ? used : (int)sizeof line - 2;
    for (char *at = line; at < line + used; at++) {
        *at = *at == '\n' ? ' ' : *at;
    }
    line[used] = '\n';
    if (write(STDOUT_FILENO, line, (size_t)used + 1) < 0) {
        _exit(6);
    }
}

void chaos_begin(struct chaos_rank *self, const char *call)
{
    snprintf(self->status->call, sizeof self->status->call, "%s", call);
    self->call_began_ns = chaos_now_ns();
    __atomic_store_n(&self->status->began_ns, self->call_began_ns, __ATOMIC_RELEASE);
}

static void call_ended(struct chaos_rank *self)
{
    __atomic_store_n(&self->status->began_ns, 0, __ATOMIC_RELEASE);
    self->status->calls++;
}

/* Says what the survivors were told. */
static void say_failed(struct chaos_rank *self, comm_result_t result, uint64_t failed_ns)
{
    comm_failure_t failure = COMM_FAILURE_INIT;
    char text[2048], call[sizeof self->status->call];
    uint64_t began_ns = self->call_began_ns;
    memcpy(call, self->status->call, sizeof call);
    (void)comm_last_failure(&failure);
    snprintf(text, sizeof text, "%s", failure.text != NULL ? failure.text : "");
    uint32_t ranks[LOST_MAX];
    comm_lost_t lost = {0};
    chaos_begin(self, "comm_lost");
    comm_result_t known = comm_lost(self->comm, ranks, LOST_MAX, &lost);
    call_ended(self);
    char list[LOST_MAX * 6] = "";
    for (uint32_t i = 0, at = 0; known == COMM_OK && i < lost.count && i < LOST_MAX; i++) {
        at += (uint32_t)snprintf(list + at, sizeof list - at, "%s%u", i > 0 ? "," : "", ranks[i]);
    }
    chaos_say(self, "FAILED",
              "result=%d at=%" PRIu64 " began=%" PRIu64 " step=%" PRIu64
              " known=%d lost=%s may_shrink=%d last=%" PRIu64 " local=%u size=%u call=%s text=%s",
              (int)result, failed_ns, began_ns, self->step, (int)known, list, lost.may_shrink, lost.last_seq,
              comm_rank(self->comm), comm_size(self->comm), call, text);
}

/* Returns 0 if the rank goes on with the survivors, or the exit code. */
static int recover(struct chaos_rank *self, comm_result_t result, uint64_t failed_ns)
{
    say_failed(self, result, failed_ns);
    if (result == COMM_DAEMON_LOST) {
        return 4;
    }
    comm_shrink_options_t options = COMM_SHRINK_OPTIONS_INIT;
    options.timeout_ms = SHRINK_TIMEOUT_MS;
    comm_t *next = NULL;
    chaos_begin(self, "comm_shrink");
    comm_result_t shrunk = comm_shrink(self->comm, &options, &next);
    call_ended(self);
    if (shrunk != COMM_OK) {
        chaos_say(self, "ENDED", "result=%d text=%s", (int)shrunk, comm_last_error());
        return shrunk == COMM_DAEMON_LOST ? 4 : 3;
    }
    chaos_begin(self, "comm_destroy");
    comm_destroy(self->comm);
    call_ended(self);
    self->comm = next;
    self->generation++;
    self->step = 0;
    chaos_say(self, "SHRUNK", "local=%u size=%u", comm_rank(next), comm_size(next));
    return 0;
}

static int run_job(struct chaos_rank *self)
{
    for (bool over = false; !over;) {
        if (wants_abort) {
            wants_abort = 0;
            chaos_begin(self, "comm_abort");
            comm_result_t aborted = comm_abort(self->comm, "chaos");
            (void)aborted; /* the next call says how the communicator is */
            call_ended(self);
        }
        comm_result_t result = chaos_step(self, wants_end != 0, &over);
        uint64_t ended_ns = chaos_now_ns();
        call_ended(self);
        if (self->wrong) {
            return 5;
        }
        if (result != COMM_OK) {
            over = false;
            int code = recover(self, result, ended_ns);
            if (code != 0) {
                return code;
            }
        } else if (self->step++ == 0) {
            chaos_say(self, "WORKS", "size=%u", comm_size(self->comm));
        }
        if (self->pause_us > 0) {
            usleep(self->pause_us);
        }
    }
    chaos_begin(self, "comm_destroy");
    comm_destroy(self->comm);
    call_ended(self);
    chaos_say(self, "DONE", "steps=%" PRIu64, self->step);
    return 0;
}

static int begin_job(struct chaos_rank *self, uint32_t size)
{
    comm_open_options_t open = COMM_OPEN_OPTIONS_INIT;
    comm_init_options_t init = COMM_INIT_OPTIONS_INIT;
    open.wait_ms = OPEN_WAIT_MS;
    init.timeout_ms = FORM_TIMEOUT_MS;
    init.op_timeout_ms = CHAOS_OP_TIMEOUT_MS;
    chaos_begin(self, "comm_client_open");
    comm_result_t result = comm_client_open(&open, &self->client);
    call_ended(self);
    if (result == COMM_OK) {
        chaos_begin(self, "comm_init");
        result =
            comm_init(self->client, self->job, self->first_rank, size, COMM_DEVICE_HOST, &init, &self->comm);
        call_ended(self);
    }
    if (result == COMM_OK && chaos_buffers_new(self)) {
        chaos_say(self, "FORMED", "size=%u", size);
        return 0;
    }
    chaos_say(self, "UNFORMED", "result=%d text=%s", (int)result, comm_last_error());
    return result == COMM_DAEMON_LOST ? 4 : 3;
}

int main(int argc, char **argv)
{
    if (argc != 8) {
        fprintf(stderr, "usage: chaos_rank JOB RANK SIZE SEED MOST_BYTES PAUSE_US STATUS_FILE\n");
        return 2;
    }
    struct chaos_rank self = {.job = argv[1],
                              .first_rank = (uint32_t)strtoul(argv[2], NULL, 10),
                              .seed = strtoull(argv[4], NULL, 10),
                              .most_bytes = strtoull(argv[5], NULL, 10),
                              .pause_us = (uint32_t)strtoul(argv[6], NULL, 10)};
    struct sigaction end = {.sa_handler = want_end, .sa_flags = SA_RESTART};
    struct sigaction abort = {.sa_handler = want_abort, .sa_flags = SA_RESTART};
    sigaction(SIGUSR1, &end, NULL);
    sigaction(SIGUSR2, &abort, NULL);
    if (!chaos_status_open(&self, argv[7])) {
        perror(argv[7]);
        return 2;
    }
    int code = begin_job(&self, (uint32_t)strtoul(argv[3], NULL, 10));
    code = code == 0 ? run_job(&self) : code;
    chaos_say(&self, "EXIT", "code=%d operations=%" PRIu64 " elements=%" PRIu64, code, self.operations,
              self.elements);
    chaos_begin(&self, "comm_client_close");
    if (code != 0) {
        comm_destroy(self.comm);
    }
    chaos_buffers_free(&self);
    comm_client_close(self.client);
    call_ended(&self);
    return code;
}
