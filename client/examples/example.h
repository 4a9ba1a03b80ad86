#ifndef CLIENT_EXAMPLES_EXAMPLE_H
#define CLIENT_EXAMPLES_EXAMPLE_H

#include <commclient.h>

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>

/*
 * What the examples share: options, and an exit with a message on failure. Rank and size come from the
 * launcher (commctl run -n 4 -- kmeans), or from the options --name NAME --rank R --size N.
 */

struct example {
    comm_client_t *client;
    comm_t *comm;
    uint32_t rank;
    uint32_t size;
};

static inline void example_check(comm_result_t result, const char *what)
{
    if (result != COMM_OK) {
        fprintf(stderr, "%s: %s: %s\n", what, comm_result_text(result), comm_last_error());
        exit(EXIT_FAILURE);
    }
}

static inline void *example_allocate(size_t count, size_t size)
{
    void *memory = calloc(count > 0 ? count : 1, size);
    if (memory == NULL) {
        perror("memory");
        exit(EXIT_FAILURE);
    }
    return memory;
}

/* Joins the communicator that the command line names. If the command line is wrong, prints the usage and
 * exits with 2. If device is not null, --device is accepted, too; the default is COMM_DEVICE_HOST. */
static inline struct example example_begin_on(int argc, char **argv, const char *usual_name, int *device)
{
    const struct option options[] = {{"name", required_argument, NULL, 'n'},
                                     {"rank", required_argument, NULL, 'r'},
                                     {"size", required_argument, NULL, 's'},
                                     {device != NULL ? "device" : NULL, required_argument, NULL, 'd'},
                                     {NULL, 0, NULL, 0}};
    const int host = COMM_DEVICE_HOST;
    struct example example = {.size = 0};
    const char *name = usual_name;
    char *end = NULL;
    int fine = 1;
    if (device != NULL) {
        *device = host;
    }
    for (int option; fine && (option = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        if (option == 'n') {
            name = optarg;
        } else if (option == 'r') {
            example.rank = (uint32_t)strtoul(optarg, &end, 10);
            fine = *end == '\0';
        } else if (option == 's') {
            example.size = (uint32_t)strtoul(optarg, &end, 10);
            fine = *end == '\0';
        } else if (option == 'd') {
            *device = (int)strtol(optarg, &end, 10);
            fine = *end == '\0';
        } else {
            fine = 0;
        }
    }
    if (!fine || optind != argc || (example.size > 0 && example.rank >= example.size)) {
        fprintf(stderr, "usage: %s [--name NAME] [--rank R --size N]%s\n", usual_name,
                device != NULL ? " [--device N]" : "");
        exit(2);
    }
    example_check(comm_client_open(NULL, &example.client), "connection");
    if (example.size == 0) {
        comm_env_options_t environment = COMM_ENV_OPTIONS_INIT;
        environment.name = name;
        environment.device = device != NULL ? *device : host;
        example_check(comm_init_env(example.client, &environment, &example.comm), name);
        example.rank = comm_rank(example.comm);
        example.size = comm_size(example.comm);
        return example;
    }
    example_check(comm_init(example.client, name, example.rank, example.size, device != NULL ? *device : host,
                            NULL, &example.comm),
                  name);
    return example;
}

static inline struct example example_begin(int argc, char **argv, const char *usual_name)
{
    return example_begin_on(argc, argv, usual_name, NULL);
}

/* Waits for the other ranks, prints the outcome on rank 0, and leaves. Returns the exit code. */
static inline int example_end(struct example *example, int good, const char *what)
{
    int32_t all_good = good;
    example_check(comm_all_reduce(example->comm, &all_good, &all_good, 1, COMM_I32, COMM_MIN, NULL),
                  "all-reduce");
    example_check(comm_sync(example->comm, 0), "all-reduce");
    if (example->rank == 0) {
        printf("%s: %s\n", what, all_good ? "right" : "WRONG");
    }
    comm_destroy(example->comm);
    comm_client_close(example->client);
    return all_good ? EXIT_SUCCESS : EXIT_FAILURE;
}

#endif
