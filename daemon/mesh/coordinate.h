#ifndef DAEMON_MESH_COORDINATE_H
#define DAEMON_MESH_COORDINATE_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/base/random.h"
#include "daemon/base/time.h"

/*
 * Network coordinates: places in a space in which the distance of two nodes is about their round-trip time.
 * So a node can estimate the round trip to a node to which it has no link. Vivaldi with height vectors (Dabek
 * et al., "Vivaldi: A Decentralized Network Coordinate System", SIGCOMM 2004): a point, and above it a
 * height, the time that every packet of the node takes. Each measured round trip moves the node a little, as
 * a spring would, and more if its own coordinate is less certain than the other one's.
 *
 * A pure state machine, in whole numbers, so there is no NaN. Any thread, one at a time.
 */
#define COORDINATE_AXES 2
#define COORDINATE_UNIT_NS 100
#define COORDINATE_MAX 100000000 /* of each number below, 10 s: no cluster is that large */
#define COORDINATE_ERROR_MAX 1000u

struct coordinate {
    int32_t at[COORDINATE_AXES]; /* in COORDINATE_UNIT_NS */
    uint32_t height;             /* likewise */
    uint32_t error_permille; /* how wrong estimates are, as far as it is known; 1 to COORDINATE_ERROR_MAX */
};

/* The coordinate of a node that has measured nothing. */
struct coordinate coordinate_first(void);
/* Whether a coordinate from outside has numbers that a node may have. Others must not be used. */
bool coordinate_is_sound(const struct coordinate *coordinate);
/* The estimated round-trip time of the two nodes, in ns. */
uint64_t coordinate_round_trip_ns(const struct coordinate *one, const struct coordinate *other);
/*
 * The node has measured the round trip to a node whose sound coordinate this is. One call moves it by no more
 * than 2.5 of that round trip: a node that lies moves its neighbours little, and their other neighbours
 * pull them back. `random` gives a direction if both are at one point.
 */
void coordinate_move(struct coordinate *own, const struct coordinate *other, uint64_t round_trip_ns,
                     struct random *random);

#endif
