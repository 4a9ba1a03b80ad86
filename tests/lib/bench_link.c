#include "tests/lib/bench_link.h"

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static _Noreturn void usage(const char *program, const char *modes)
{
    fprintf(
        stderr,
        "usage: %s [--link NAMESPACE=ADDRESS,NAMESPACE=ADDRESS] [--mode MODE] [SECONDS [DATAGRAM_BYTES...]]\n"
        "modes: %s\n",
        program, modes);
    exit(2);
}

static bool parse_end(struct bench_end *end, const char *text, size_t size)
{
    const char *equals = memchr(text, '=', size);
    if (equals == NULL) {
        return false;
    }
    size_t name_bytes = (size_t)(equals - text);
    size_t address_bytes = size - name_bytes - 1;
    if (name_bytes >= sizeof end->namespace_name || address_bytes >= sizeof end->address) {
        return false;
    }
    memcpy(end->namespace_name, text, name_bytes);
    memcpy(end->address, equals + 1, address_bytes);
    end->namespace_name[name_bytes] = '\0';
    end->address[address_bytes] = '\0';
    return true;
}

static bool parse_ends(struct bench_link *link, const char *text)
{
    const char *comma = strchr(text, ',');
    return comma != NULL && parse_end(&link->ends[0], text, (size_t)(comma - text)) &&
           parse_end(&link->ends[1], comma + 1, strlen(comma + 1));
}

static bool is_mode(const char *mode, const char *modes)
{
    size_t size = strlen(mode);
    for (const char *at = modes; (at = strstr(at, mode)) != NULL; at += size) {
        bool begins = at == modes || at[-1] == ' ';
        if (size > 0 && begins && (at[size] == ' ' || at[size] == '\0')) {
            return true;
        }
    }
    return false;
}

void bench_link_parse(struct bench_link *link, int argc, char **argv, const char *modes)
{
    static char first_mode[32];
    static const uint32_t usual[] = {1452, 8952, 65000};
    memset(link, 0, sizeof *link);
    snprintf(first_mode, sizeof first_mode, "%.*s", (int)strcspn(modes, " "), modes);
    link->mode = first_mode;
    link->duration_s = 3;
    for (size_t i = 0; i < 2; i++) {
        strcpy(link->ends[i].address, "127.0.0.1");
    }
    int next = 1;
    for (; next + 1 < argc && strncmp(argv[next], "--", 2) == 0; next += 2) {
        if (strcmp(argv[next], "--link") == 0 && parse_ends(link, argv[next + 1])) {
            continue;
        }
        if (strcmp(argv[next], "--mode") != 0 || !is_mode(argv[next + 1], modes)) {
            usage(argv[0], modes);
        }
        link->mode = argv[next + 1];
    }
    if (next < argc) {
        link->duration_s = strtod(argv[next++], NULL);
    }
    if (link->duration_s <= 0) {
        usage(argv[0], modes);
    }
    for (; next < argc && link->datagram_count < BENCH_DATAGRAMS_MAX; next++) {
        link->datagram_bytes[link->datagram_count++] = (uint32_t)strtoul(argv[next], NULL, 10);
    }
    if (link->datagram_count == 0) {
        memcpy(link->datagram_bytes, usual, sizeof usual);
        link->datagram_count = sizeof usual / sizeof usual[0];
    }
}

void bench_link_enter(const struct bench_end *end)
{
    char path[128];
    if (end->namespace_name[0] == '\0') {
        return;
    }
    snprintf(path, sizeof path, "/run/netns/%s", end->namespace_name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || setns(fd, CLONE_NEWNET) != 0) {
        perror(path);
        exit(1);
    }
    close(fd);
}

double bench_cpu_s(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}
