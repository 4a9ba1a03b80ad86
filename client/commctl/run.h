#ifndef CLIENT_COMMCTL_RUN_H
#define CLIENT_COMMCTL_RUN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "client/commctl/commctl.h"

/*
 * commctl run: starts the ranks of a job, hands on their output and signals, and ends all if one fails.
 *
 * On one machine, each rank is a child of commctl. With --hosts, each child is ssh or srun, which runs
 * another commctl on its host, the agent. The agent is given the numbers of its ranks, and starts them as its
 * children. Its standard input is its control: each byte is a signal for its ranks, and the end of the input
 * ends them. So an agent ends when commctl, ssh or the network between them ends.
 */

#define RUN_RANKS_MAX 4096u
#define RUN_HOSTS_MAX 1024u
#define RUN_LINE_MAX_BYTES 65536u /* a longer line is printed in parts, each with its label */
#define RUN_GRACE_DEFAULT_S 5.0
#define RUN_JOB_MAX_BYTES 96u

enum run_launcher { RUN_SSH, RUN_SRUN };

struct run_host {
    char *name;
    uint32_t count; /* ranks */
};

struct run_options {
    uint32_t size;  /* of the job */
    uint32_t first; /* the first rank that this process starts */
    uint32_t count; /* how many it starts; of a job on several hosts, only an agent starts any */
    bool is_agent;
    bool label;
    const char *output_folder; /* null: output is handed on */
    double grace_s;            /* between SIGTERM and SIGKILL */
    char job[RUN_JOB_MAX_BYTES + 1];
    const char *socket_path; /* null: the ranks find it */
    enum run_launcher launcher;
    struct run_host *hosts; /* null: this machine */
    size_t host_count;
    const char **variables; /* NAME or NAME=VALUE, for the ranks on other hosts */
    size_t variable_count;
    char **program; /* and its arguments; null-terminated */
};

/* run_options.c. Prints what is wrong. The caller frees with run_options_free in every case. */
enum exit_code run_options_parse(const struct commctl *commctl, int argc, char **argv,
                                 struct run_options *out);
void run_options_free(struct run_options *options);
extern const char run_usage[];

/* run_output.c: one standard stream of a child. Whole lines are handed on, each with its label. */
struct run_stream {
    int fd;     /* read end; -1: closed */
    int target; /* STDOUT_FILENO or STDERR_FILENO */
    char label[16];
    bool midway; /* the first part of a long line is out */
    size_t used_bytes;
    char *line; /* RUN_LINE_MAX_BYTES; allocated with the first output */
};
/* Reads once, without waiting, and hands on what is complete. At its end the stream is closed. Returns 0, or
 * the errno value of a failed write. */
int run_stream_read(struct run_stream *stream);
/* Hands on the rest, also of a line that is not complete, and closes. Returns as run_stream_read. */
int run_stream_end(struct run_stream *stream);

/* run_child.c: a rank, or the program that reaches a host. */
struct run_child {
    char what[80]; /* "rank 3", "host a" */
    pid_t pid;     /* also its process group; 0: it has ended */
    int status;    /* of waitpid, once it has ended */
    int control;   /* the agent's control; -1: none */
    struct run_stream streams[2];
};
/* Starts rank options->first + index. Returns 0 or an errno value. */
int run_child_start_rank(const struct run_options *options, uint32_t index, struct run_child *child);
/* Starts the agent of a host, whose ranks begin with `first`. */
int run_child_start_host(const struct run_options *options, size_t host, uint32_t first,
                         struct run_child *child);
/* Sends a signal to all processes of the child. To an agent, sends it in words, unless it is SIGKILL. */
void run_child_signal(struct run_child *child, int signal_number);
/* If the process has ended: ends the rest of its process group, and sets pid to 0. */
void run_child_reap(struct run_child *child);
/* 0 to 255, as a shell says it: 128 + the number of a signal. */
int run_child_exit_code(const struct run_child *child);

/* run_host.c: the command that starts an agent. Allocated, as are its texts; null if memory is short. */
char **run_host_command(const struct run_options *options, size_t host, uint32_t first);
void run_host_command_free(char **command);

#endif
