#ifndef DAEMON_EXEC_RAILS_H
#define DAEMON_EXEC_RAILS_H

#include "daemon/base/mailbox.h"
#include "daemon/exec/exec.h"

/*
 * Several execs that share the work of one, the home: each on a thread of its own, the first ones with a
 * network endpoint of their own. The slices of an operation are spread over them: within a node they are
 * taken by whoever is free, between nodes slice s is the work of rail s modulo the communicator's rail_count,
 * so that all nodes find it on the same connection; of rails that not all nodes reach, others do the work.
 * Small operations, messages, and what nodes agree on stay with the home, which is rail 0. Rails without work
 * cost nothing: they have connections only to nodes that a communicator shares them with.
 *
 * The home's thread calls everything here but rails_run_rail and rails_rail_...; what it tells a rail goes by
 * mail.
 */
struct rails;

#define EXEC_RAILS_MAX 16

struct rails_options {
    uint32_t count;            /* of execs, the home's among them, at most EXEC_RAILS_MAX */
    uint32_t network_count;    /* the first so many have a network; at least 1 */
    struct exec *const *execs; /* count; the first is the home's. They outlive the rails; copied */
    struct net *const *nets; /* network_count; the first is ignored. Handlers of peers are set here. Copied */
    struct mailbox *mailboxes; /* count, of these threads; outlive the rails */
    const char *node_name;     /* copied */
    uint64_t reconnect_min_ns, reconnect_max_ns;
};

/* From now on communicators of the home's exec, made by exec_comm_new, may use them. */
enum status rails_new(const struct rails_options *options, struct rails **out,
                      struct error *error) COMM_MUST_USE;
/*
 * After every communicator was freed and the rails' threads ended: what they left in mailboxes is done here.
 * Afterwards the execs may be freed, the home's last.
 */
void rails_free(struct rails *rails, uint64_t now_ns);

/*
 * A node that the home's net knows by this index, perhaps again. Rail r of a node listens on the port of its
 * address + r; the node whose name comes first dials.
 */
enum status rails_add_peer(struct rails *rails, uint32_t peer, const char *name, const char *address,
                           struct error *error) COMM_MUST_USE;

/* A node that the home's net has removed, for that cause; rails_add_peer undoes it. */
void rails_remove_peer(struct rails *rails, uint32_t peer, const struct error *cause);
/* Another address, for rails that are dialled from now on. INVALID_ARGUMENT, NO_MEMORY. */
enum status rails_move_peer(struct rails *rails, uint32_t peer, const char *address,
                            struct error *error) COMM_MUST_USE;

/* "host:port" with the port of a rail. False when there is none, or it would be too large. */
bool rails_address(const char *address, uint32_t rail, char *out, size_t size);

/* What all rails but the home's carried to and from one node, as of about RAILS_PUBLISH_NS ago. */
#define RAILS_PUBLISH_NS 100000000u
struct rails_traffic {
    uint32_t needed;    /* of these rails: those that a communicator uses to that node */
    uint32_t connected; /* of the needed ones */
    uint64_t sent_bytes, received_bytes, lost_packets;
    char missing[ERROR_TEXT_MAX_BYTES]; /* a needed rail that is not connected, and why; "" when none */
};
/* Of a peer that is not known: nothing. */
void rails_traffic(const struct rails *rails, uint32_t peer, struct rails_traffic *out);

/* Connections that are wanted and not there are tried again. */
uint64_t rails_next_deadline_ns(const struct rails *rails);
void rails_tick(struct rails *rails, uint64_t now_ns);

/* Before a rail's thread ends: whether its exec still has communicators, which its network may have to let go
 * of. */
bool rails_rail_is_busy(const struct rails *rails, uint32_t rail);

/* What a rail's thread does between its waits, its mailbox included. Returns whether more is waiting. */
bool rails_run_rail(struct rails *rails, uint32_t rail, uint64_t now_ns);
/* When that thread is to run at the latest, and to call exec_tick. */
uint64_t rails_rail_deadline_ns(const struct rails *rails, uint32_t rail);

#endif
