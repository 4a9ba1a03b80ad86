#ifndef DAEMON_MESH_RAIL_LINKS_H
#define DAEMON_MESH_RAIL_LINKS_H

#include "daemon/base/mailbox.h"
#include "daemon/mesh/mesh.h"
#include "daemon/net/bulk.h"

/*
 * The links of rails. A rail is a network endpoint with a thread of its own. Rail 0 is the mesh's own net, on
 * the main thread. Rail r of a node listens on the port of its address + r, and on the host that
 * rail_addresses says (conf/rail_addresses.h; "": on that of the address).
 *
 * All links are dialled by one rule: while they are needed, by the node with the lower name, with one
 * back-off. A link of another rail is dialled and accepted only while the node is up. So heartbeats on rail 0
 * judge all rails of a node, and a node that is held off is held off on all rails.
 *
 * Only the main thread calls the functions here, except mesh_rail_run and mesh_rail_deadline_ns. The mesh
 * sends its orders to a rail through the mailbox of the rail's thread, which must run it.
 */
#define MESH_RAILS_MAX 16

struct mesh_rail_handler {
    void *context;
    /* A link other than rail 0's is up, or was lost. On the main thread. */
    void (*rail_up)(void *context);
    void (*rail_lost)(void *context, uint32_t node, uint32_t rail, const struct error *cause,
                      uint64_t now_ns);
    /* The same loss, earlier: on the rail's thread, before the net hands out anything of a next link. */
    void (*streams_lost)(void *context, uint32_t node, uint32_t rail);
};

struct mesh_rails_options {
    uint32_t count;            /* rail 0 included; 2 to MESH_RAILS_MAX */
    struct net *const *nets;   /* count; the first is ignored. They get peer handlers here. Copied */
    struct mailbox *mailboxes; /* count, of the rails' threads; the first is the main thread's. Not copied */
    struct mesh_rail_handler handler;
};

/* Gives the mesh further rails. Call it before mesh_add_node, and before their threads run. NO_MEMORY. */
enum status mesh_set_rails(struct mesh *mesh, const struct mesh_rails_options *options,
                           struct error *error) COMM_MUST_USE;
/* The mesh sends no more orders. Call it when the threads have ended, before the mailboxes are emptied for
 * the last time. */
void mesh_end_rails(struct mesh *mesh);
/* Rail 0 included. */
uint32_t mesh_rail_count(const struct mesh *mesh);

/* A communicator needs the links of the first rail_count rails to that node; one call undoes the other. Rail
 * 0 is not concerned: see mesh_need. */
void mesh_need_rails(struct mesh *mesh, uint32_t node, uint32_t rail_count);
void mesh_unneed_rails(struct mesh *mesh, uint32_t node, uint32_t rail_count);
/* Of a rail other than 0. Null: the link is up. Otherwise the last reason why it is not; "" if there is none.
 * Valid until a report of a rail. */
const char *mesh_rail_missing(const struct mesh *mesh, uint32_t node, uint32_t rail);

/* Sets the IP addresses of a node's further network cards, for every later dial. The default is "".
 * INVALID_ARGUMENT: a rail's port would be too large. NO_MEMORY. */
enum status mesh_set_rail_addresses(struct mesh *mesh, uint32_t node, const char *rail_addresses,
                                    struct error *error) COMM_MUST_USE;
/* Valid until they are set again. */
const char *mesh_rail_addresses(const struct mesh *mesh, uint32_t node);

/* Counters of rails other than 0 are as of about MESH_PUBLISH_NS ago. */
#define MESH_PUBLISH_NS 100000000u
/* One link, and the bulk link beside it. */
struct mesh_rail_statistics {
    struct net_peer_statistics net;
    struct net_bulk_statistics bulk;
};
void mesh_rail_statistics(const struct mesh *mesh, uint32_t node, uint32_t rail,
                          struct mesh_rail_statistics *out);

/* All links to one node but that of rail 0. */
struct mesh_rails_traffic {
    uint32_t needed;    /* of these rails, by communicators */
    uint32_t connected; /* of the needed ones */
    uint64_t sent_bytes, received_bytes, lost_packets, resumed_count;
    char missing[ERROR_TEXT_MAX_BYTES]; /* a needed rail that is not connected, and the reason; "" if none */
};
void mesh_rails_traffic(const struct mesh *mesh, uint32_t node, struct mesh_rails_traffic *out);

/* On the thread of a rail other than 0, after each turn: publishes counters. */
void mesh_rail_run(struct mesh *mesh, uint32_t rail, uint64_t now_ns);
uint64_t mesh_rail_deadline_ns(const struct mesh *mesh, uint32_t rail);

#endif
