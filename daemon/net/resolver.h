#ifndef DAEMON_NET_RESOLVER_H
#define DAEMON_NET_RESOLVER_H

#include <stdint.h>

#include "daemon/base/loop.h"
#include "daemon/net/net.h"
#include "daemon/net/quic_address.h"
#include "daemon/net/srv.h"

/*
 * Finds the IP addresses of hosts' names, and SRV records, on threads of its own, because a name server may
 * take many seconds to answer. Only the loop's thread calls these functions. Threads start with the first
 * question, and then stay.
 */
struct resolver;

#define RESOLVER_THREADS_MAX 4
#define RESOLVER_QUESTIONS_MAX NET_PEERS_MAX

/* The answer to resolver_ask, on the loop's thread. address: "192.0.2.1:7400"; null if there is none, for the
 * reason `why`. All texts are valid during the call. */
typedef void resolver_function(void *context, uint32_t id, const char *asked, const char *address,
                               const struct error *why, uint64_t now_ns);

/* Looks up "host:port" for sockets of the family, and may block. Any thread. */
typedef enum status resolver_lookup(const char *text, int family, char out[QUIC_ADDRESS_TEXT_MAX_BYTES],
                                    struct error *error);

/* The answer to resolver_ask_services, likewise. answer: null if there is none, for the reason `why`. */
typedef void resolver_services_function(void *context, const char *name, const struct srv_answer *answer,
                                        const struct error *why, uint64_t now_ns);

/* Looks up the SRV records of a name, as srv_lookup does, and may block. Any thread. */
typedef enum status resolver_lookup_services(const char *name, struct srv_answer *out, struct error *error);

struct resolver_options {
    struct loop *loop;
    int family;                                /* of our socket: AF_INET or AF_INET6 */
    resolver_lookup *lookup;                   /* null: getaddrinfo */
    resolver_lookup_services *lookup_services; /* null: srv_lookup */
    resolver_function *done;                   /* null: no addresses are asked for */
    resolver_services_function *services_done; /* null: no services are asked for */
    void *context;
};

enum status resolver_new(const struct resolver_options *options, struct resolver **out,
                         struct error *error) COMM_MUST_USE;
/* Forgets all questions. A thread within a lookup ends when the lookup does. Null is accepted. */
void resolver_free(struct resolver *resolver);

/* Asks for an address. `done` follows, not within this call. LIMIT beyond RESOLVER_QUESTIONS_MAX, SYSTEM if
 * no thread can be started, NO_MEMORY: `done` does not follow then. */
enum status resolver_ask(struct resolver *resolver, uint32_t id, const char *text,
                         struct error *error) COMM_MUST_USE;
/* Asks for the SRV records of a name; `services_done` follows. Otherwise as resolver_ask. */
enum status resolver_ask_services(struct resolver *resolver, const char *name,
                                  struct error *error) COMM_MUST_USE;

#endif
