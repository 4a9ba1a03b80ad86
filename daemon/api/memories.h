#ifndef DAEMON_API_MEMORIES_H
#define DAEMON_API_MEMORIES_H

#include "daemon/api/session.h"
#include "daemon/gpu/cuda_memory.h"

/* What the files about clients' memory share. All of it: the main thread. */

/* --- Requests that a GPU's thread carries out --- */

/* A request that is answered later. It outlives its session if need be. */
struct api_late {
    struct api_late *prev, *next; /* in the session */
    struct api_session *session;  /* null: it has ended */
    uint64_t request_id;
    uint32_t id; /* of a memory that is being opened; 0: of none */
    bool retried;
    struct budget_account *account; /* of a memory that is being opened: charged for one memory */
    union {
        struct gpu_opening opening;
        struct gpu_mapping mapping;
    } work;
};

/* The request is then in its session's list. LIMIT, NO_MEMORY. */
enum status api_late_new(struct api_session *session, uint64_t request_id, struct api_late **out,
                         struct error *error) COMM_MUST_USE;
void api_late_free(struct api_late *late);

/* --- Registrations --- */

struct api_memory_place {
    struct memory_origin origin;
    uint64_t size_bytes;
    const struct memory *memory; /* null: any memory at that place */
    char user[COMM_NAME_MAX_BYTES + 1];
};

/* Adds the name of the communicator that uses the memory to the text of the error. */
void api_memory_name_user(const struct api_session *session, struct api_memory_place *place,
                          struct error *error);
/* Takes over the reference to the memory, also on failure. The session's memory has that id then. */
enum status api_memory_keep(struct api_session *session, uint32_t id, struct memory *opened,
                            struct error *error) COMM_MUST_USE;
/* Answers the request, and logs why. */
void api_registration_refused(struct api_session *session, uint64_t request_id, uint64_t size_bytes,
                              const struct error *error);

/* memory_opening.c: opens memory on GPUs. On success the answer comes later. fd: as in requests.c. */
enum status api_memory_open(struct api_session *session, uint64_t request_id,
                            const Commd__Client__MemRegister *request, int fd,
                            struct error *error) COMM_MUST_USE;
bool api_memory_is_being_opened(const struct api_session *session, uint32_t id);

#endif
