#ifndef DAEMON_EXEC_RAILS_H
#define DAEMON_EXEC_RAILS_H

#include "daemon/base/mailbox.h"
#include "daemon/exec/exec.h"

/*
 * Several execs that share the work of one, the main exec, which is rail 0. Each runs on a thread of its own,
 * and the first ones have a network endpoint of their own. The slices of an operation are spread over them.
 * Within a node each slice is taken by the next free thread. Between nodes slice s is the work of rail s
 * modulo the communicator's rail_count, so that all nodes find it on the same connection. If some node cannot
 * reach a rail, the other rails do its work. Small operations, messages, and agreement between nodes stay on
 * rail 0. Rails without work cost nothing: a communicator that shares them asks for their links (exec_links).
 *
 * Only the main thread calls the functions here, except rails_run_rail and rails_rail_..., which a rail's
 * thread calls. The main thread sends its orders to a rail through a mailbox.
 */
struct rails;

#define EXEC_RAILS_MAX 16

struct rails_options {
    uint32_t count;            /* of execs, the main one included, at most EXEC_RAILS_MAX */
    uint32_t network_count;    /* the first network_count execs have a network; at least 1 */
    struct exec *const *execs; /* count; the first is the main exec. They must outlive the rails; copied */
    struct mailbox *mailboxes; /* count, one per thread; must outlive the rails */
};

/* Communicators that exec_comm_new makes afterwards on the main exec may use the rails. */
enum status rails_new(const struct rails_options *options, struct rails **out,
                      struct error *error) COMM_MUST_USE;
/*
 * Call it after every communicator was freed and the rails' threads have ended. It handles the mail that they
 * left in mailboxes. Afterwards the execs may be freed, the main one last.
 */
void rails_free(struct rails *rails, uint64_t now_ns);

/* Whether the rail's exec still has communicators, whose buffers its network may still hold. A rail's thread
 * asks before it ends. */
bool rails_rail_is_busy(const struct rails *rails, uint32_t rail);

/* What a rail's thread runs between its waits; it also reads the rail's mailbox. Returns whether more work is
 * waiting. */
bool rails_run_rail(struct rails *rails, uint32_t rail, uint64_t now_ns);
/* When that thread must run at the latest, and call exec_tick. */
uint64_t rails_rail_deadline_ns(const struct rails *rails, uint32_t rail);

#endif
