#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/lib/environment.h"

/*
 * MPICH's mpiexec (Hydra) sets no job number. On each node its ranks are children of one hydra_pmi_proxy,
 * perhaps with shells between. So if all ranks are on this node, that process is the job.
 */

#define PROXY_NAME "hydra_pmi_proxy" /* as long as a process's name can be */
#define ANCESTORS_MAX 16

struct process {
    char name[32];
    pid_t parent;
    unsigned long long started; /* in clock ticks since the boot */
};

/* proc_pid_stat(5): the name is in parentheses, and may hold some itself; 3 is the state, 4 the parent, 22
 * the start. */
static bool read_process(pid_t pid, struct process *out)
{
    char path[64], text[1024];
    int parent;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t size = fd >= 0 ? read(fd, text, sizeof text - 1) : -1;
    if (fd >= 0) {
        close(fd);
    }
    text[size > 0 ? size : 0] = '\0';
    const char *name = strchr(text, '('), *end = strrchr(text, ')');
    if (name == NULL || end == NULL ||
        sscanf(end + 1, " %*c %d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu",
               &parent, &out->started) != 2) {
        return false;
    }
    snprintf(out->name, sizeof out->name, "%.*s", (int)(end - name - 1), name + 1);
    out->parent = parent;
    return true;
}

bool hydra_find_job(uint32_t size, char job[ENVIRONMENT_JOB_BYTES])
{
    const char *local = getenv("MPI_LOCALNRANKS");
    struct process process;
    pid_t pid = getppid();
    if (local == NULL || strtoul(local, NULL, 10) != size) {
        return false;
    }
    for (int i = 0; i < ANCESTORS_MAX && pid > 1 && read_process(pid, &process); i++) {
        if (strcmp(process.name, PROXY_NAME) == 0) {
            snprintf(job, ENVIRONMENT_JOB_BYTES, "hydra-%d-%llu", (int)pid, process.started);
            return true;
        }
        pid = process.parent;
    }
    return false;
}
