#include "client/commctl/bench.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile sig_atomic_t interrupted;

static void on_signal(int number)
{
    interrupted = number;
}

static void catch_signals(void (*handler)(int number))
{
    struct sigaction action = {.sa_handler = handler}; /* without SA_RESTART: wait() is to return */
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

static void end_all(const pid_t *processes, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (processes[i] > 0) {
            kill(processes[i], SIGTERM);
        }
    }
}

/* Waits for all; the first that fails ends the others. */
static enum exit_code wait_for_all(pid_t *processes, uint32_t count)
{
    enum exit_code code = EXIT_CODE_OK;
    for (uint32_t left = count; left > 0;) {
        int status;
        pid_t process = wait(&status);
        if (interrupted && code == EXIT_CODE_OK) {
            code = EXIT_CODE_FAILURE;
            end_all(processes, count);
        }
        if (process < 0) {
            if (errno == EINTR) {
                continue;
            }
            break;
        }
        for (uint32_t i = 0; i < count; i++) {
            processes[i] = processes[i] == process ? 0 : processes[i];
        }
        left--;
        if (!(WIFEXITED(status) && WEXITSTATUS(status) == 0) && code == EXIT_CODE_OK) {
            bool not_running = WIFEXITED(status) && WEXITSTATUS(status) == EXIT_CODE_NOT_RUNNING;
            code = not_running ? EXIT_CODE_NOT_RUNNING : EXIT_CODE_FAILURE;
            end_all(processes, count);
        }
    }
    return code;
}

enum exit_code verb_bench(struct commctl *commctl, int argc, char **argv)
{
    char name[64];
    pid_t processes[BENCH_RANKS_MAX] = {0};
    struct bench_options options;
    bench_options_default(&options);
    options.socket_path = commctl->socket_path;
    options.json = commctl->json;
    snprintf(name, sizeof name, "bench-%u", (unsigned)getuid());
    options.communicator = name;
    enum exit_code code = bench_options_parse(argc, argv, &options);
    if (code != EXIT_CODE_OK) {
        return code;
    }
    if (access(options.socket_path, F_OK) != 0) {
        fprintf(stderr, "commctl: %s: %s (is commd running? set COMMD_SOCKET or --socket)\n",
                options.socket_path, strerror(errno));
        return EXIT_CODE_NOT_RUNNING;
    }
    catch_signals(on_signal);
    fflush(stdout);
    pid_t parent = getpid();
    for (uint32_t i = 0; i < options.ranks; i++) {
        processes[i] = fork();
        if (processes[i] < 0) {
            fprintf(stderr, "commctl: bench: %s\n", strerror(errno));
            end_all(processes, i);
            (void)wait_for_all(processes, i);
            return EXIT_CODE_FAILURE;
        }
        if (processes[i] == 0) {
            catch_signals(SIG_DFL);
            (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
            _exit(getppid() == parent ? bench_rank(&options, options.first_rank + i) : EXIT_CODE_FAILURE);
        }
    }
    return wait_for_all(processes, options.ranks);
}
