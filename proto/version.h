#ifndef PROTO_VERSION_H
#define PROTO_VERSION_H

#define COMMD_VERSION_TEXT "0.1.0"

/* The newest version, and the oldest that this software still speaks: proto/version_range.h. Tests build
 * releases with other numbers (tests/rules.mk). */
#ifndef CLIENT_PROTOCOL_VERSION
#define CLIENT_PROTOCOL_VERSION 2
#define CLIENT_PROTOCOL_OLDEST 2
#define MESH_PROTOCOL_VERSION 5
#define MESH_PROTOCOL_OLDEST 5
#endif

#define CLIENT_SOCKET_DEFAULT "/run/commd/commd.sock"
#define CLIENT_SOCKET_ENVIRONMENT "COMMD_SOCKET"
/* For administration. It is not in the folder of the clients' socket, which containers mount. */
#define ADMIN_SOCKET_DEFAULT "/run/commd-admin/admin.sock"
#define ADMIN_SOCKET_ENVIRONMENT "COMMD_ADMIN_SOCKET"
#define ADMIN_SOCKET_SUFFIX ".admin" /* appended to a clients' socket path that is not the default */
#define CLIENT_WAIT_ENVIRONMENT "COMMD_WAIT_MS" /* how long comm_client_open waits for commd */
#define CLIENT_ALGORITHMS_ENVIRONMENT "COMMD_ALGORITHMS"

#define CLIENT_RINGS_ENVIRONMENT "COMMD_RINGS" /* "off": no rings */

#define CLIENT_CELLS_ENVIRONMENT "COMMD_CELLS" /* "off": no cells */

#define CLIENT_FEATURE_RINGS "rings"
#define CLIENT_FEATURE_CELLS "cells_12" /* proto/cells.h; Cells, CellsRetire. Before, layouts were others */
#define CLIENT_FEATURE_HEARTBEAT "heartbeat" /* proto/heartbeat.h */
/* commd honours the ticket of a RECORD_EVENT (proto/records.h). */
#define CLIENT_FEATURE_RECORDS_BY_TICKET "records_by_ticket"
#define CLIENT_FEATURE_SHRINK "shrink"     /* CommShrink */
#define CLIENT_FEATURE_ABORT "abort"       /* commd takes Request.abort */
#define CLIENT_FEATURE_FAILURES "failures" /* failures of operations and communicators come as data, too */
#define CLIENT_FEATURE_STORE "store"       /* StoreAsk, proto/store.h */
#define CLIENT_FEATURE_GRAPHS "graphs"     /* RECORD_CAPTURED, proto/records.h */
#define CLIENT_FEATURE_GATHER "gather"     /* CommJoin, CommGrow */
#define CLIENT_FEATURE_DRAINING "draining" /* Draining */
#define CLIENT_FEATURE_MEMORY_POOLS "memory_pools" /* MemRegister.pool_pointer */
#define MESH_FEATURE_STORE "store"                 /* StoreAsk */
#define MESH_FEATURE_GATHER "gather"               /* Gather */
/* Bulk links: daemon/net/tls.h. Before, agreements of operations never went there. */
#define MESH_FEATURE_BULK "tls_links_2"
#define MESH_FEATURE_RELAYS "meeting_relays" /* Meet.relay, MeetMany, MetMany */
/* A node whose part has ended sends Withdraw again to nodes that announce their ranks to it. */
#define MESH_FEATURE_ENDS "meeting_ends"
#define MESH_FEATURE_WITNESS "meeting_witness" /* EndAsk */
/* all_gathers and reduce_scatters may be in buckets, too. */
#define CLIENT_FEATURE_BUCKETS_OF_BLOCKS "buckets_of_blocks"
/* Capacity of each direction; the client's comes first. Packets larger than half of it use the socket. */
#define CLIENT_RING_BYTES 65536u
/* Sent with the Hello's reply: the memory, commd's doorbell and the client's (Unix sockets; a byte rings). */
#define CLIENT_RING_FDS 3
#define CLIENT_PACKET_MAX_BYTES 65536
#define CLIENT_PACKET_FDS_MAX 1
#define CLIENT_FENCES_MAX 16 /* the most that one operation waits for */
#define CLIENT_TABLE_RANKS_MAX 4096
#define CLIENT_TABLE_NODES_MAX 256
#define CLIENT_LIST_PAGE_MAX 64
#define CLIENT_ERROR_TEXT_MAX_BYTES 512
#define CLIENT_ABORT_REASON_MAX_BYTES 255
#define CLIENT_FAILURE_RANKS_MAX 64

#endif
