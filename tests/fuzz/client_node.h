#ifndef TESTS_FUZZ_CLIENT_NODE_H
#define TESTS_FUZZ_CLIENT_NODE_H

#include "daemon/api/api.h"
#include "daemon/comm/comms.h"
#include "daemon/exec/exec.h"
#include "daemon/mesh/mesh.h"
#include "proto/client.pb-c.h"
#include "proto/records.h"
#include "proto/ring.h"
#include "tests/fuzz/input.h"

/*
 * One node from the client socket down, with a clock of its own, and clients that say to it whatever the
 * input holds. Time goes on only when fuzz_node_advance says so; who a client is, fuzz_client_connect says.
 */
#define FUZZ_CLIENTS 3
#define FUZZ_FILES 8         /* memfds and others that clients offer as memory */
#define FUZZ_FILE_BYTES 8192 /* of most of them; what is larger is not compared */
#define FUZZ_TICKETS 32      /* that the clients use; each may come often */

struct fuzz_node {
    struct loop *loop;
    struct mesh *mesh;
    struct exec *exec;
    struct p2p *p2p;
    struct comms *comms;
    struct api *api;
    bool woken;
};

/* What a client asked for and was told. Counts are of packets that commd has to have read. */
struct fuzz_client {
    struct fuzz_node *node;
    int fd;                                                 /* -1: not connected */
    bool ended;                                             /* the other side closed it */
    unsigned requests[FUZZ_TICKETS], replies[FUZZ_TICKETS]; /* by id modulo that */
    unsigned submits[FUZZ_TICKETS], completes[FUZZ_TICKETS];
    bool destroys;   /* a communicator, whose pending operations are not told of any more */
    unsigned not_ok; /* completions and replies that are errors */
    /* Null, or told of each request and submission that went. */
    void (*asked)(void *context, const Commd__Client__Request *request);
    void (*submitted)(void *context, const struct submit_record *record);
    void *asked_context;
    /* Rings, once the reply to a Hello brought them. */
    int bell_of_daemon, bell;
    unsigned char *shared; /* two rings, the client's first */
    struct ring out, in;
    bool scribbles; /* in its rings: what it asked for, or is told there, is not known any more */
};

/* What a client offers as memory; `touched` is where commd may have written. */
struct fuzz_file {
    int fd; /* -1: none */
    uint64_t size;
    bool compares;
    uint8_t bounce[FUZZ_FILE_BYTES];
    uint64_t touched_from, touched_to;
};

/* The clock and who clients are, while a node runs. */
void fuzz_clock_start(void);
void fuzz_clock_stop(void);

void fuzz_node_start(struct fuzz_node *node);
/* After all clients are gone. Requires that nothing is left of them. */
void fuzz_node_stop(struct fuzz_node *node);
void fuzz_node_turn(struct fuzz_node *node);
void fuzz_node_turns(struct fuzz_node *node, unsigned count);
/* Turns, and what becomes due meanwhile. */
void fuzz_node_advance(struct fuzz_node *node, uint64_t span_ns);

/* Leaves `asked` as it is. */
void fuzz_client_connect(struct fuzz_client *client, struct fuzz_node *node, uint32_t uid);
void fuzz_client_close(struct fuzz_client *client);
/* False: it did not go, and nothing counts as asked for. */
bool fuzz_client_send(struct fuzz_client *client, const uint8_t *packet, size_t size, const int *fds,
                      unsigned fd_count);
bool fuzz_client_request(struct fuzz_client *client, const Commd__Client__Request *request, int fd);
/* Takes and counts what came; returns how many events that was. */
unsigned fuzz_client_read(struct fuzz_client *client);
/* Each request and submit was answered, once. */
void fuzz_client_check_answered(const struct fuzz_client *client);
void fuzz_client_hello(struct fuzz_client *client, bool rings);

/* client_files.c */
void fuzz_files_new(struct fuzz_file files[FUZZ_FILES]);
void fuzz_file_make(struct fuzz_file *file, struct fuzz_input *input);
void fuzz_file_write(struct fuzz_file *file, uint64_t offset, const void *bytes, size_t size);
/* commd may write there from now on. */
void fuzz_file_touch(struct fuzz_file *file, uint64_t offset, uint64_t size);
/* Nothing is mapped any more, and nothing was written but where commd may. */
void fuzz_file_check(struct fuzz_file *file);
void fuzz_file_close(struct fuzz_file *file);

/* client_actions.c */
struct fuzz_sessions;
struct fuzz_session {
    struct fuzz_sessions *all;
    struct fuzz_client client;
    uint32_t uid;
    uint8_t files_of_memory[FUZZ_FILES]; /* bits: what memory n modulo that may be */
    int sent_file;                       /* with the packet under way; -1: none */
};
struct fuzz_sessions {
    struct fuzz_node node;
    struct fuzz_session sessions[FUZZ_CLIENTS];
    struct fuzz_file files[FUZZ_FILES];
    bool waits_long; /* something may rightly take longer than FUZZ_PATIENCE_NS */
};
#define FUZZ_PATIENCE_NS (200ull * 1000000000ull)
void fuzz_sessions_start(struct fuzz_sessions *all, bool rings);
/* What the next bytes say: of one client, of time, or of memory. */
void fuzz_act(struct fuzz_sessions *all, struct fuzz_input *input);
/* Everything comes to its end, and the clients go. */
void fuzz_sessions_end(struct fuzz_sessions *all);

/* client_victim.c: a client beside others, whose operation has to end well. */
struct fuzz_victim {
    struct fuzz_client client;
    int fd;
    uint8_t *bytes;
};
void fuzz_victim_start(struct fuzz_victim *victim, struct fuzz_node *node, bool rings);
/* Its operation, and its end. */
void fuzz_victim_end(struct fuzz_victim *victim, struct fuzz_node *node);

/* client_requests.c: one request with arguments from the input. */
void fuzz_request_send(struct fuzz_session *session, struct fuzz_input *input);

#endif
