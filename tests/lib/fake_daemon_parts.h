#ifndef TESTS_LIB_FAKE_DAEMON_PARTS_H
#define TESTS_LIB_FAKE_DAEMON_PARTS_H

/* What the files of fake_daemon share. Tests include only fake_daemon.h. */

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/client.pb-c.h"
#include "proto/records.h"
#include "proto/status.h"
#include "proto/types.h"
#include "proto/version.h"
#include "tests/lib/fake_daemon.h"

#define FAKE_SESSIONS_MAX 16
#define FAKE_COMMS_MAX 64
#define FAKE_MEMORIES_MAX 4096
#define FAKE_DELAYED_MAX 8192
#define FAKE_NODE_NAMES_MAX 600

struct fake_comm {
    uint32_t handle; /* 0: free */
    uint32_t rank;
    uint32_t size;
};

struct fake_memory {
    uint32_t id;         /* 0: free */
    unsigned char *base; /* null: memory on a GPU */
    uint64_t size_bytes;
    uint64_t mapped_bytes;
    bool is_of_pool; /* of a CUDA memory pool */
};

/* Something to be sent later, first in, first out. */
struct fake_delayed {
    uint64_t due_ns;
    uint32_t handle;
    uint64_t ticket;              /* ticket of a completion; 0: nobody is told */
    uint64_t init_request_id;     /* or the request id of a CommInitReply; else 0 */
    struct submit_record *record; /* a copy of the record */
    /* FAKE_WAITS: the operation runs when its words are reached */
    enum { FAKE_WAITS, FAKE_DONE, FAKE_REFUSED } state;
};

struct fake_session {
    int fd; /* -1: free */
    bool closing;
    struct fake_rings *rings; /* null: only the socket is used */
    bool offers_rings;        /* the descriptors of the rings go with the next packet */
    uint64_t pending;
    struct fake_comm comms[FAKE_COMMS_MAX];
    struct fake_memory memories[FAKE_MEMORIES_MAX];
    struct fake_delayed delayed[FAKE_DELAYED_MAX];
    uint64_t delayed_head, delayed_tail;
};

struct fake_daemon {
    pthread_t thread;
    pthread_mutex_t lock;   /* guards script, op_count, counts, stopping, goes_on */
    pthread_cond_t changed; /* signalled when counts change */
    struct fake_script script;
    uint64_t op_count;
    struct fake_counts counts;
    bool stopping;
    bool goes_on;
    bool stopped_reading; /* used by the thread alone */
    int wake_fd;
    int listen_fd;
    char folder[64];
    char path[96];
    char node_names[FAKE_NODE_NAMES_MAX][FAKE_DAEMON_NODE_NAME_BYTES];
    struct fake_session sessions[FAKE_SESSIONS_MAX];
};

/* fake_daemon.c. fake_must ends the process if the condition is false. */
void fake_must(bool condition, const char *what);
uint64_t fake_now_ns(void);
/* Unlocks, and wakes those who wait for counts. */
static inline void fake_unlock(struct fake_daemon *daemon)
{
    pthread_cond_broadcast(&daemon->changed);
    pthread_mutex_unlock(&daemon->lock);
}

struct fake_script fake_current_script(struct fake_daemon *daemon);

/* fake_daemon_send.c */
void fake_send_bytes(struct fake_session *session, const void *bytes, size_t size);
void fake_send_event(struct fake_session *session, const Commd__Client__Event *event);
void fake_send_reply(struct fake_session *session, Commd__Client__Reply *reply);
void fake_send_done(struct fake_session *session, uint64_t request_id);
void fake_send_error(struct fake_session *session, uint64_t request_id, enum status status, const char *text);
void fake_send_complete(struct fake_session *session, uint32_t handle, uint64_t ticket, uint32_t status,
                        const char *text);

/* fake_daemon_comms.c */
struct fake_comm *fake_find_comm(struct fake_session *session, uint32_t handle);
void fake_send_formed(struct fake_session *session, const struct fake_script *script, uint64_t request_id);
void fake_handle_init(struct fake_daemon *daemon, struct fake_session *session, uint64_t request_id,
                      const Commd__Client__CommInit *request);
void fake_handle_table(struct fake_daemon *daemon, struct fake_session *session, uint64_t request_id,
                       const Commd__Client__CommTable *request);
void fake_handle_destroy(struct fake_daemon *daemon, struct fake_session *session, uint64_t request_id,
                         uint32_t handle);

/* fake_daemon_memory.c */
struct fake_memory *fake_find_memory(struct fake_session *session, uint32_t id);
void fake_forget_memory(struct fake_daemon *daemon, struct fake_memory *memory);
void fake_handle_register(struct fake_daemon *daemon, struct fake_session *session, uint64_t request_id,
                          const Commd__Client__MemRegister *request, int fd);
void fake_handle_map(struct fake_daemon *daemon, struct fake_session *session, uint64_t request_id,
                     const Commd__Client__MemMap *request, int fd);
void fake_handle_deregister(struct fake_daemon *daemon, struct fake_session *session, uint64_t request_id,
                            const Commd__Client__MemDeregister *request);

/* fake_daemon_ops.c */
bool fake_words_are_reached(struct fake_session *session, const struct submit_record *record);
/* Sets the word that tells the end of the operation or event, if there is one. */
void fake_set_word(struct fake_session *session, const struct submit_record *record);
/* Carries out an operation. Returns false if commd would refuse it. */
bool fake_perform(struct fake_daemon *daemon, struct fake_session *session,
                  const struct submit_record *submit);
void fake_finish(struct fake_daemon *daemon, struct fake_session *session, const struct submit_record *submit,
                 bool done);
void fake_carry_out(struct fake_daemon *daemon, struct fake_session *session,
                    const struct submit_record *event);
/* Handles a record: an operation or an event. */
void fake_handle_record(struct fake_daemon *daemon, struct fake_session *session,
                        const struct submit_record *record);

/* fake_daemon_later.c. The queue owns what is delayed. */
void fake_delay(struct fake_session *session, const struct fake_delayed *what);
void fake_say_delayed(struct fake_daemon *daemon, struct fake_session *session);
void fake_free_delayed(struct fake_delayed *delayed);

/* fake_daemon_sessions.c: the function of the thread. */
void *fake_serve(void *argument);

#endif
