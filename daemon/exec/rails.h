#ifndef DAEMON_EXEC_RAILS_H
#define DAEMON_EXEC_RAILS_H

#include "daemon/base/mailbox.h"
#include "daemon/exec/exec.h"
#include "daemon/net/bulk.h"

/*
 * Several execs that share the work of one, the main exec, which is rail 0. Each runs on a thread of its own,
 * and the first ones have a network endpoint of their own. The slices of an operation are spread over them.
 * Within a node each slice is taken by the next free thread. Between nodes slice s is the work of rail s
 * modulo the communicator's rail_count, so that all nodes find it on the same connection. If some node cannot
 * reach a rail, the other rails do its work. Small operations, messages, and agreement between nodes stay on
 * rail 0. Rails without work cost nothing: they are connected only to nodes with which a communicator shares
 * them.
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
    struct net *const *nets;   /* network_count; the first is ignored. rails_new sets peer handlers. Copied */
    struct mailbox *mailboxes; /* count, one per thread; must outlive the rails */
    const char *node_name;     /* copied */
    uint64_t reconnect_min_ns, reconnect_max_ns;
};

/* Communicators that exec_comm_new makes afterwards on the main exec may use the rails. */
enum status rails_new(const struct rails_options *options, struct rails **out,
                      struct error *error) COMM_MUST_USE;
/*
 * Call it after every communicator was freed and the rails' threads have ended. It handles the mail that they
 * left in mailboxes. Afterwards the execs may be freed, the main one last.
 */
void rails_free(struct rails *rails, uint64_t now_ns);

/*
 * Adds a node that the main net knows by this index, or adds it again. Rail r of a node listens on the port
 * of its address + r, and on the host that rail_addresses says (conf/rail_addresses.h; "": on that of the
 * address). The node whose name sorts first dials. The texts are copied.
 */
enum status rails_add_peer(struct rails *rails, uint32_t peer, const char *name, const char *address,
                           const char *rail_addresses, struct error *error) COMM_MUST_USE;

/* Removes a node that the main net has removed, for that cause; rails_add_peer undoes it. */
void rails_remove_peer(struct rails *rails, uint32_t peer, const struct error *cause);
/* Sets new addresses, used for every later dial. rail_addresses: null keeps what was said before.
 * INVALID_ARGUMENT, NO_MEMORY. */
enum status rails_move_peer(struct rails *rails, uint32_t peer, const char *address,
                            const char *rail_addresses, struct error *error) COMM_MUST_USE;
/* What was said last; "" for an unknown peer. Valid until the next call of rails_add_peer or rails_move_peer.
 */
const char *rails_peer_addresses(const struct rails *rails, uint32_t peer);

/* Traffic of all rails but rail 0 to and from one node, as of about RAILS_PUBLISH_NS ago. */
#define RAILS_PUBLISH_NS 100000000u
struct rails_traffic {
    uint32_t needed;    /* how many of these rails a communicator uses to that node */
    uint32_t connected; /* of the needed ones */
    uint64_t sent_bytes, received_bytes, lost_packets, resumed_count;
    char missing[ERROR_TEXT_MAX_BYTES]; /* a needed rail that is not connected, and the reason; "" if none */
};
/* All zero for an unknown peer. */
void rails_traffic(const struct rails *rails, uint32_t peer, struct rails_traffic *out);

/* The connection of one rail, rail 0 excepted, to one node, as of about RAILS_PUBLISH_NS ago: whether it is
 * up, and its counters. All zero for an unknown peer or rail. */
void rails_link_statistics(const struct rails *rails, uint32_t peer, uint32_t rail,
                           struct net_peer_statistics *out);
/* The same for the bulk link of that rail. */
void rails_bulk_statistics(const struct rails *rails, uint32_t peer, uint32_t rail,
                           struct net_bulk_statistics *out);
/* How many rails have a network, rail 0 included. */
uint32_t rails_network_count(const struct rails *rails);

/* Deadline and timer: connections that are needed and not up are dialled again. */
uint64_t rails_next_deadline_ns(const struct rails *rails);
void rails_tick(struct rails *rails, uint64_t now_ns);

/* Whether the rail's exec still has communicators, whose buffers its network may still hold. A rail's thread
 * asks before it ends. */
bool rails_rail_is_busy(const struct rails *rails, uint32_t rail);

/* What a rail's thread runs between its waits; it also reads the rail's mailbox. Returns whether more work is
 * waiting. */
bool rails_run_rail(struct rails *rails, uint32_t rail, uint64_t now_ns);
/* When that thread must run at the latest, and call exec_tick. */
uint64_t rails_rail_deadline_ns(const struct rails *rails, uint32_t rail);

#endif
