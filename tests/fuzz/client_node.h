#ifndef TESTS_FUZZ_CLIENT_NODE_H
#define TESTS_FUZZ_CLIENT_NODE_H

#include "daemon/api/api.h"
#include "daemon/comm/comms.h"
#include "daemon/exec/exec.h"
#include "daemon/mesh/mesh.h"
#include "proto/cells.h"
#include "proto/client.pb-c.h"
#include "proto/records.h"
#include "proto/ring.h"
#include "tests/fuzz/input.h"

/*
 * One node with everything below the client socket and its own clock, and clients that send what the input
 * says. Time moves only by fuzz_node_advance. fuzz_client_connect sets the user of a client.
 */
#define FUZZ_CLIENTS 3
#define FUZZ_FILES 8         /* memfds and others that clients offer as memory */
#define FUZZ_FILE_BYTES 8192 /* size of most of them; larger files are not compared */
#define FUZZ_TICKETS 32      /* tickets that the clients use; each may be used often */

struct fuzz_node {
    struct loop *loop;
    struct mesh *mesh;
    struct exec *exec;
    struct p2p *p2p;
    struct comms *comms;
    struct stores *stores;
    struct api *api;
};

/* What a client asked for, and what it was told. Only packets that commd must read are counted. */
struct fuzz_client {
    struct fuzz_node *node;
    int fd;                                                 /* -1: not connected */
    bool ended;                                             /* the other side closed it */
    unsigned requests[FUZZ_TICKETS], replies[FUZZ_TICKETS]; /* by id modulo FUZZ_TICKETS */
    unsigned submits[FUZZ_TICKETS], completes[FUZZ_TICKETS];
    bool captured[FUZZ_TICKETS]; /* of an operation of a graph: each replay that fails is answered, too */
    bool destroys;   /* it destroyed a communicator, whose pending operations get no answer any more */
    unsigned not_ok; /* how many completions and replies were errors */
    /* Called for each request and each submission that was sent, or null. */
    void (*asked)(void *context, const Commd__Client__Request *request);
    void (*submitted)(void *context, const struct submit_record *record);
    void *asked_context;
    /* The rings; there are some once the reply to a Hello brought them. */
    int bell_of_daemon, bell;
    unsigned char *shared; /* both rings, the client's first */
    struct ring out, in;
    bool scribbles; /* it writes into its rings, so its requests and answers cannot be counted any more */
    struct cells_shared *cells; /* of its last communicator that has cells; null: none */
    size_t cells_bytes;
};

/* What a client offers as memory. commd may have written from touched_from to touched_to. */
struct fuzz_file {
    int fd; /* -1: none */
    uint64_t size;
    bool compares;
    uint8_t bounce[FUZZ_FILE_BYTES];
    uint64_t touched_from, touched_to;
};

/* Between these two calls, a simulated clock and simulated users replace the real ones. */
void fuzz_clock_start(void);
void fuzz_clock_stop(void);

void fuzz_node_start(struct fuzz_node *node);
/* Stops the node after all clients are gone. Checks that the node holds nothing of them. */
void fuzz_node_stop(struct fuzz_node *node);
void fuzz_node_turn(struct fuzz_node *node);
void fuzz_node_turns(struct fuzz_node *node, unsigned count);
/* Moves the clock, and runs turns and all that becomes due. */
void fuzz_node_advance(struct fuzz_node *node, uint64_t span_ns);

/* Connects as that user. Keeps `asked` and `submitted`. */
void fuzz_client_connect(struct fuzz_client *client, struct fuzz_node *node, uint32_t uid);
void fuzz_client_close(struct fuzz_client *client);
/* Returns false if the packet was not sent; then it does not count. */
bool fuzz_client_send(struct fuzz_client *client, const uint8_t *packet, size_t size, const int *fds,
                      unsigned fd_count);
bool fuzz_client_request(struct fuzz_client *client, const Commd__Client__Request *request, int fd);
/* Takes and counts the events that came. Returns how many. */
unsigned fuzz_client_read(struct fuzz_client *client);
/* Checks that each request and submit was answered once. */
void fuzz_client_check_answered(const struct fuzz_client *client);
void fuzz_client_hello(struct fuzz_client *client, bool rings);

/* client_files.c */
void fuzz_files_new(struct fuzz_file files[FUZZ_FILES]);
void fuzz_file_make(struct fuzz_file *file, struct fuzz_input *input);
void fuzz_file_write(struct fuzz_file *file, uint64_t offset, const void *bytes, size_t size);
/* From now on, commd may write to this range. */
void fuzz_file_touch(struct fuzz_file *file, uint64_t offset, uint64_t size);
/* Checks that nobody maps the file any more, and that commd wrote only where it may. */
void fuzz_file_check(struct fuzz_file *file);
void fuzz_file_close(struct fuzz_file *file);

/* client_actions.c */
struct fuzz_sessions;
struct fuzz_session {
    struct fuzz_sessions *all;
    struct fuzz_client client;
    uint32_t uid;
    /* by memory number modulo FUZZ_FILES: a bit for each file that it may be */
    uint8_t files_of_memory[FUZZ_FILES];
    int sent_file; /* the file that goes with the packet under way; -1: none */
};
struct fuzz_sessions {
    struct fuzz_node node;
    struct fuzz_session sessions[FUZZ_CLIENTS];
    struct fuzz_file files[FUZZ_FILES];
    bool waits_long; /* something may take longer than FUZZ_PATIENCE_NS without being wrong */
};
#define FUZZ_PATIENCE_NS (200ull * 1000000000ull)
void fuzz_sessions_start(struct fuzz_sessions *all, bool rings);
/* Does what the next bytes of the input say, with one client, with time, or with a file. */
void fuzz_act(struct fuzz_sessions *all, struct fuzz_input *input);
/* Lets everything end, and closes the clients. */
void fuzz_sessions_end(struct fuzz_sessions *all);

/* client_victim.c: a correct client beside the others. Its operation must end well. */
struct fuzz_victim {
    struct fuzz_client client;
    int fd;
    uint8_t *bytes;
};
void fuzz_victim_start(struct fuzz_victim *victim, struct fuzz_node *node, bool rings);
/* Runs its operation, checks the result, and closes it. */
void fuzz_victim_end(struct fuzz_victim *victim, struct fuzz_node *node);

/* client_requests.c: sends one request with arguments from the input. */
void fuzz_request_send(struct fuzz_session *session, struct fuzz_input *input);

#endif
