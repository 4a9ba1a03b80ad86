#ifndef DAEMON_EXEC_DEVICE_BOUNCE_H
#define DAEMON_EXEC_DEVICE_BOUNCE_H

#include "daemon/exec/exec_internal.h"

/* Bounce buffers of one operation: its GPU buffers are copied to pinned memory and back, if nothing else
 * serves. Used by device.c alone, on the main thread. */
struct device_bounce;
struct device_bounces {
    struct device_bounce *list;
    uint32_t count;
    uint32_t rank_count;
    uint64_t *marks; /* of each GPU: DEVICE_UNMARKED once something was queued there */
};
#define DEVICE_UNMARKED UINT64_MAX

/* marks belong to the caller, and outlive the bounce buffers. Returns false when out of memory. */
bool device_bounces_init(struct device_bounces *bounces, uint32_t rank_count, uint64_t *marks);
/* Frees all. No copy may be under way. */
void device_bounces_release(struct exec_comm *comm, struct device_bounces *bounces);
/* Begins to pin the memory. What was made stays until the release, also after a failure. LIMIT, NO_MEMORY, or
 * the driver's failure. */
enum status device_bounces_begin(struct exec_comm *comm, struct device_bounces *bounces,
                                 const struct exec_op *op, struct error *error) COMM_MUST_USE;
/* *ready: whether all memory is there. NO_MEMORY, DEVICE. */
enum status device_bounces_poll(struct exec_comm *comm, struct device_bounces *bounces, bool *ready,
                                struct error *error) COMM_MUST_USE;
/* Then: queues the copies in, and lets the ranks' buffers point there. DEVICE, NO_MEMORY. */
enum status device_bounces_in(struct exec_comm *comm, struct device_bounces *bounces, struct exec_op *op,
                              struct error *error) COMM_MUST_USE;
/* Queues the copies back. */
enum status device_bounces_out(struct exec_comm *comm, struct device_bounces *bounces,
                               struct error *error) COMM_MUST_USE;

#endif
