#ifndef DAEMON_EXEC_GPU_RELEASE_H
#define DAEMON_EXEC_GPU_RELEASE_H

#include "daemon/base/fence.h"
#include "daemon/exec/exec_internal.h"

/*
 * Writes that end the waits of a communicator's stream for its clients, from a stream of their own. If
 * streams share one queue of the GPU, such a write may come late: behind the wait of another communicator. So
 * it holds the memory of its word until the write is done, although the operation may have ended by then, and
 * the client may be gone. The thread of the exec that the communicator belongs to.
 */
struct gpu_release;

/* account: charged for the stream. Errors: those of gpu_queue_new. */
enum status gpu_release_new(struct exec *exec, uint32_t gpu, struct budget_account *account,
                            struct gpu_release **out, struct error *error) COMM_MUST_USE;
/* Does not block: writes that are not done yet are left to the exec. Accepts null. */
void gpu_release_free(struct gpu_release *release);

/* Whether all marked writes are done. If so, it holds no memory any more. */
bool gpu_release_is_done(struct gpu_release *release, uint64_t now_ns);
/*
 * Puts a write of the fence's value to its word, which must be registered (gpu_word_address). Call it only
 * when earlier marked writes are done. Put a mark behind the last one, also behind one that failed. Errors:
 * NO_MEMORY; or the GPU has failed, so it waits for nothing.
 */
enum status gpu_release_write(struct gpu_release *release, const struct fence *fence,
                              struct error *error) COMM_MUST_USE;
enum status gpu_release_mark(struct gpu_release *release, struct error *error) COMM_MUST_USE;

/* For the exec: lets go what writes held that are done by now, and tells when to call it again. */
void gpu_releases_tick(struct exec *exec, uint64_t now_ns);
uint64_t gpu_releases_deadline_ns(const struct exec *exec);
/* Waits for all writes. No communicator is left, so no stream waits for a client. */
void gpu_releases_end(struct exec *exec);

#endif
