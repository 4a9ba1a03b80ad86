#ifndef CLIENT_LIB_INTERNAL_H
#define CLIENT_LIB_INTERNAL_H

#include <commclient.h>

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "proto/client.pb-c.h"

/*
 * What the library's files share. One lock a client guards everything of it. There is no thread of the
 * library's own: whoever waits reads the socket, one thread at a time, and hands out what arrives; the others
 * wait for it to do so.
 */

#define ERROR_TEXT_BYTES 768
#define OPS_IN_FLIGHT_MAX 1024u /* of one communicator; the daemon may say less */
#define OPEN_TIMEOUT_DEFAULT_MS 10000u
#define FORM_TIMEOUT_DEFAULT_MS 60000u
#define OP_TIMEOUT_DEFAULT_MS 60000u
#define REQUEST_TIMEOUT_MS 10000u /* for answers that commd gives at once */
#define DAEMON_MARGIN_MS 5000u    /* beyond commd's own deadline, before it counts as frozen */
#define FINISH_TIMEOUT_MS 1000u   /* how long destroy and close try to finish */
#define STAGING_MIN_BYTES 65536u
#define STAGING_CACHED_MAX_BYTES                                                                             \
    (256u << 20) /* of blocks that wait to be used again; beyond, they are freed */
#define RANKS_MAX 65536u
#define NODES_MAX 16384u

/* Memory that commd has mapped: the caller's, or a staging block. */
struct client_memory {
    uint32_t id;
    unsigned char *base;
    size_t size_bytes;
    bool owned; /* mapped by us */
    bool staging;
    uint32_t uses;                   /* operations in flight */
    struct client_memory *next_free; /* staging blocks that wait to be used again */
};

/* An operation in flight, oldest first in its communicator's list. */
struct client_op {
    struct client_op *next;
    uint64_t ticket;
    uint64_t deadline_ns;
    struct client_memory *input;
    struct client_memory *output;
    void *copy_to; /* the caller's output, when staged */
    const void *copy_from;
    size_t copy_bytes;
};

struct comm_comm {
    struct comm_client *client;
    struct comm_comm *next;
    uint32_t handle;
    uint32_t rank;
    uint32_t size;
    uint32_t local_rank;
    uint32_t local_size;
    uint32_t op_timeout_ms;
    uint32_t node_count;
    uint32_t *node_of_rank;
    char **node_names;
    char *name;
    struct client_op *first_op;
    struct client_op **last_op;
    uint32_t in_flight;
    uint64_t last_ticket;
    comm_result_t failure; /* the first one; stays */
    char failure_text[ERROR_TEXT_BYTES];
};

/* A request whose reply somebody waits for; lives on that thread's stack. */
struct client_request {
    struct client_request *next;
    uint64_t id;
    Commd__Client__Event *event; /* null until it arrived */
};

struct comm_client {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pid_t pid;
    int fd;
    char *path;
    bool reading;
    comm_result_t lost; /* COMM_OK while connected */
    char lost_text[ERROR_TEXT_BYTES];
    uint64_t last_request_id;
    uint32_t last_handle;
    uint32_t last_memory_id;
    uint32_t pending_ops_max;
    struct client_request *requests;
    struct comm_comm *comms;
    struct client_memory **memories; /* by address */
    size_t memory_count;
    size_t memory_capacity;
    struct client_memory *free_staging;
    size_t free_staging_bytes;
    unsigned char packet[65536];
};

/* result.c */
comm_result_t error_report(comm_result_t result, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
comm_result_t error_repeat(comm_result_t result, const char *text);

/* connection.c; all with the lock held, which they may let go meanwhile */
uint64_t clock_ns(void);
uint64_t clock_after_ms(uint64_t ms);
comm_result_t client_enter(struct comm_client *client); /* takes the lock; fails after fork or null */
void client_leave(struct comm_client *client);
void client_lose(struct comm_client *client, comm_result_t result, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Lets something happen; false when deadline_ns passed first. */
bool client_progress(struct comm_client *client, uint64_t deadline_ns);
comm_result_t client_send(struct comm_client *client, const Commd__Client__Request *request, int fd);
/* One request, one reply: *event is the caller's to free, and its body is `expected`. An Error is reported
 * and returned. */
comm_result_t client_ask(struct comm_client *client, Commd__Client__Request *request, int fd,
                         Commd__Client__Reply__BodyCase expected, uint64_t timeout_ms,
                         Commd__Client__Event **event);

/* op.c */
void ops_handle_complete(struct comm_client *client, const Commd__Client__Complete *complete);
void ops_handle_aborted(struct comm_client *client, const Commd__Client__Aborted *aborted);
void ops_forget(struct comm_comm *comm);
comm_result_t ops_finish(struct comm_comm *comm, uint64_t ticket, uint64_t timeout_ms);

/* memory.c */
comm_result_t memory_make(struct comm_client *client, size_t size_bytes, bool staging,
                          struct client_memory **out);
struct client_memory *memory_find(const struct comm_client *client, const void *address, size_t size_bytes);
void memory_release_all(struct comm_client *client);
comm_result_t staging_take(struct comm_client *client, size_t size_bytes, struct client_memory **out);
void staging_give(struct comm_client *client, struct client_memory *memory);

/* Copies an options struct of any known size over defaults; false when it is not acceptable. */
bool options_copy(void *target, size_t known_size, const void *source);

#endif
