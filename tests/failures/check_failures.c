#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/failures/failure_run.h"
#include "tests/lib/test_pki.h"

/* WAITS = True */

/*
 * Makes allocations and system calls fail, one in each run, while daemons and two ranks do a little of
 * everything. A scenario says in which process calls fail: that process is armed. Runs without a failure find
 * the call sites. Then each site has runs of its own (fail_plan.h). The programs of a run are separate
 * processes. Steps of a run: start daemons, first ranks, second ranks, reload, third ranks, end.
 *
 * What must hold of each run:
 *   - nobody crashes, hangs, or leaks memory (leaks: in a build with AddressSanitizer);
 *   - if a call of a rank reports success, the rank has the right bytes;
 *   - an armed daemon may fail to start, if it logs what failed. Otherwise it serves the second and third
 *     ranks without an error, reloads, and ends in order.
 *
 * COMMD_FAILURES: how many runs of each scenario, evenly spread over its sites (default FAILURES_SAMPLED);
 * "sites": some for each site; "all": every call. With the arguments SCENARIO SITE:OCCURRENCE:ERRNO the
 * program makes that one run, and shows the logs.
 */
#define FAILURES_SAMPLED 24
#define COUNTING_RUNS 3 /* more than one, because threads and the network vary which calls occur */
#define TRIES 3         /* for a run whose call did not occur, or in which somebody was too late */
#define RUNS_AT_ONCE 4  /* more than processors: the runs mostly wait */

static const struct scenario scenarios[] = {
    {"daemon", ARMED_DAEMON, false},
    {"client", ARMED_CLIENT, false},
    {"daemon_of_two", ARMED_DAEMON, true},
    {"client_of_two", ARMED_CLIENT, true},
};
#define SCENARIOS (sizeof scenarios / sizeof *scenarios)

/* Sums over all processes of run_share, in memory that they share. */
struct totals {
    _Atomic size_t next; /* index of the next run */
    _Atomic uint32_t wrong, not_reached;
};

static void share_state(struct run *run)
{
    run->state_fd = memfd_create("failures", MFD_CLOEXEC);
    if (run->state_fd < 0 || ftruncate(run->state_fd, sizeof *run->state) != 0) {
        perror("memfd_create");
        exit(EXIT_FAILURE);
    }
    run->state = mmap(NULL, sizeof *run->state, PROT_READ | PROT_WRITE, MAP_SHARED, run->state_fd, 0);
    if (run->state == MAP_FAILED) {
        perror("mmap");
        exit(EXIT_FAILURE);
    }
}

/* Takes the next of `wanted` runs until none is left. */
static void run_share(struct run *run, const struct fail_plan *plan, size_t wanted, struct totals *totals)
{
    static struct fail_state what;
    share_state(run);
    for (size_t i = atomic_fetch_add(&totals->next, 1); i < wanted; i = atomic_fetch_add(&totals->next, 1)) {
        const struct fail_plan_run *chosen = &plan->runs[i * plan->runs_used / wanted];
        bool fine = false, again = true;
        what.fail_site = plan->sites[chosen->site].id;
        what.fail_occurrence = chosen->occurrence;
        what.fail_errno = chosen->errnum;
        for (int tries = 0; tries < TRIES && again; tries++) {
            fine = failure_run(run, &what, false);
            again = fine ? !run->state->failed : !run->grave;
        }
        totals->wrong += !fine;
        if (fine && !run->state->failed) {
            failure_run_say(run, &plan->sites[chosen->site], "nothing was tried");
            totals->not_reached++;
        }
    }
}

/* Makes runs in which no call fails, to find the call sites. Returns whether all held. */
static bool find_sites(struct run *run, struct fail_plan *plan)
{
    static const struct fail_state nothing;
    bool fine = true;
    for (int i = 0; i < COUNTING_RUNS && fine; i++) {
        fine = failure_run(run, &nothing, false);
        if (fine && run->state->sites_left_out > 0) {
            fprintf(stderr, "%s: more call sites than FAIL_SITES_MAX\n", run->scenario->name);
            fine = false;
        }
        fail_plan_add(plan, run->state);
    }
    return fine;
}

static bool run_scenario(struct run *run, unsigned index, const char *asked)
{
    pid_t shares[RUNS_AT_ONCE];
    struct fail_plan plan = {0};
    struct totals *totals =
        mmap(NULL, sizeof *totals, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    bool fine = totals != MAP_FAILED && find_sites(run, &plan);
    fail_plan_make(&plan, strcmp(asked, "all") == 0);
    bool samples = strcmp(asked, "all") != 0 && strcmp(asked, "sites") != 0;
    size_t wanted = samples ? strtoull(asked, NULL, 10) : plan.runs_used;
    wanted = wanted < plan.runs_used ? wanted : plan.runs_used;
    fflush(NULL);
    for (unsigned i = 0; fine && i < RUNS_AT_ONCE; i++) {
        shares[i] = fork();
        if (shares[i] == 0) {
            run_share(run, &plan, wanted, totals);
            _exit(EXIT_SUCCESS);
        }
    }
    for (unsigned i = 0; fine && i < RUNS_AT_ONCE; i++) {
        int status;
        (void)waitpid(shares[i], &status, 0);
        totals->wrong += status != 0;
    }
    fine = fine && totals->wrong == 0;
    printf("%s %u - %s: %zu call sites, %zu of %zu runs, %u went wrong, %u did not come to their call\n",
           fine ? "ok" : "not ok", index + 1, run->scenario->name, plan.sites_used, wanted, plan.runs_used,
           totals->wrong, totals->not_reached);
    fflush(stdout);
    munmap(totals, sizeof *totals);
    fail_plan_free(&plan);
    return fine;
}

/* Makes one run. `text` is SITE:OCCURRENCE:ERRNO, as a finding prints it. */
static bool run_one(struct run *run, const char *text)
{
    static struct fail_state what;
    unsigned long long site, occurrence;
    if (sscanf(text, "%llx:%llu:%u", &site, &occurrence, &what.fail_errno) != 3) {
        fprintf(stderr, "%s: not SITE:OCCURRENCE:ERRNO\n", text);
        return false;
    }
    what.fail_site = site;
    what.fail_occurrence = occurrence;
    return failure_run(run, &what, true);
}

static void find_programs(struct run *run, const char *program)
{
    const char *name = strrchr(program, '/');
    int folder = name != NULL ? (int)(name + 1 - program) : 0;
    run->program = program;
    snprintf(run->rank_program, sizeof run->rank_program, "%.*sfailure_rank", folder, program);
    snprintf(run->commctl, sizeof run->commctl, "%.*s../../commctl", folder, program);
}

int main(int argc, char **argv)
{
    static struct run run;
    char sampled[16];
    const char *asked = getenv("COMMD_FAILURES");
    struct test_certificate certificates[] = {{.name = "a"}, {.name = "b"}};
    bool fine = true;
    snprintf(sampled, sizeof sampled, "%d", FAILURES_SAMPLED);
    run.pki = test_pki_new();
    test_pki_issue(run.pki, "a", &certificates[0]);
    test_pki_issue(run.pki, "b", &certificates[1]);
    share_state(&run);
    find_programs(&run, argv[0]);
    for (unsigned i = 0; i < SCENARIOS; i++) {
        run.scenario = &scenarios[i];
        if (argc > 2 && strcmp(argv[1], scenarios[i].name) == 0) {
            fine = run_one(&run, argv[2]);
        }
        if (argc <= 2 && (argc < 2 || strcmp(argv[1], scenarios[i].name) == 0)) {
            fine = run_scenario(&run, i, asked != NULL ? asked : sampled) && fine;
        }
    }
    if (argc == 1) {
        printf("1..%zu\n", SCENARIOS);
    }
    test_pki_free(run.pki);
    return fine ? EXIT_SUCCESS : EXIT_FAILURE;
}
