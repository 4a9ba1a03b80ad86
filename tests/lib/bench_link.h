#ifndef TESTS_LIB_BENCH_LINK_H
#define TESTS_LIB_BENCH_LINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * What the benchmarks of one link share: their command line, and the two ends between which they run.
 *
 *   [--link NAMESPACE=ADDRESS,NAMESPACE=ADDRESS] [--mode MODE] [SECONDS [DATAGRAM_BYTES...]]
 *
 * Without --link both ends are on 127.0.0.1. With it, each process first enters its network namespace (one of
 * `ip netns`), which needs root. Any failure ends the process.
 */
#define BENCH_DATAGRAMS_MAX 16

struct bench_end {
    char namespace_name[64]; /* empty: the process stays in its namespace */
    char address[64];
};

struct bench_link {
    struct bench_end ends[2]; /* the process that measures, and its child */
    const char *mode;
    double duration_s;
    uint32_t datagram_bytes[BENCH_DATAGRAMS_MAX];
    size_t datagram_count;
};

/* modes: names separated by spaces; without --mode, the first one is used. */
void bench_link_parse(struct bench_link *link, int argc, char **argv, const char *modes);

/* Moves the calling thread into the end's namespace. */
void bench_link_enter(const struct bench_end *end);

/* Returns the user and system time that this process has used. */
double bench_cpu_s(void);

#endif
