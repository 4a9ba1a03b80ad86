#include "daemon/mesh/coordinate.h"

#include <math.h>

#define MOVE_SHARE 0.25  /* of the force, at most: c_c of the paper */
#define ERROR_SHARE 0.25 /* c_e of the paper */
#define PULL_MOST 10     /* of what was measured. With less, nodes of one rack may stay apart for ever */
#define ERROR_MIN_PERMILLE 10.0
#define HEIGHT_MIN 10.0 /* 1 us: two nodes are never at one place */

struct coordinate coordinate_first(void)
{
    return (struct coordinate){.height = (uint32_t)HEIGHT_MIN, .error_permille = COORDINATE_ERROR_MAX};
}

bool coordinate_is_sound(const struct coordinate *coordinate)
{
    for (unsigned i = 0; i < COORDINATE_AXES; i++) {
        int64_t at = coordinate->at[i];
        if (at > COORDINATE_MAX || at < -COORDINATE_MAX) {
            return false;
        }
    }
    return coordinate->height <= COORDINATE_MAX && coordinate->error_permille >= 1 &&
           coordinate->error_permille <= COORDINATE_ERROR_MAX;
}

/* The distance of the points, without heights. */
static double plane_distance(const struct coordinate *one, const struct coordinate *other)
{
    double sum = 0;
    for (unsigned i = 0; i < COORDINATE_AXES; i++) {
        double along = (double)one->at[i] - (double)other->at[i];
        sum += along * along;
    }
    return sqrt(sum);
}

static double distance(const struct coordinate *one, const struct coordinate *other)
{
    return plane_distance(one, other) + (double)one->height + (double)other->height;
}

uint64_t coordinate_round_trip_ns(const struct coordinate *one, const struct coordinate *other)
{
    return (uint64_t)(distance(one, other) * COORDINATE_UNIT_NS);
}

static double clamp(double number, double least, double most)
{
    return number < least ? least : number > most ? most : number;
}

/* Fills the direction from the other node to this one, of length 1: any one if they are at one point. */
static void direction_from(const struct coordinate *own, const struct coordinate *other,
                           struct random *random, double out[COORDINATE_AXES])
{
    double length = plane_distance(own, other);
    double squares = 0;
    for (unsigned i = 0; i < COORDINATE_AXES; i++) {
        out[i] = length > 0 ? (double)own->at[i] - (double)other->at[i]
                            : (double)random_below(random, 2001) - 1000.0;
        squares += out[i] * out[i];
    }
    for (unsigned i = 0; i < COORDINATE_AXES; i++) {
        out[i] = squares > 0 ? out[i] / sqrt(squares) : 0;
    }
}

void coordinate_move(struct coordinate *own, const struct coordinate *other, uint64_t round_trip_ns,
                     struct random *random)
{
    double most = COORDINATE_MAX;
    double measured = clamp((double)round_trip_ns / COORDINATE_UNIT_NS, 1, most);
    double estimated = distance(own, other);
    double own_error = own->error_permille, other_error = other->error_permille;
    double weight = own_error / (own_error + other_error);
    double sample = clamp(fabs(estimated - measured) / measured * 1000, 0, COORDINATE_ERROR_MAX);
    double error = sample * ERROR_SHARE * weight + own_error * (1 - ERROR_SHARE * weight);
    double force = MOVE_SHARE * weight * clamp(measured - estimated, -PULL_MOST * measured, measured);
    double flat = plane_distance(own, other);
    double along[COORDINATE_AXES];
    direction_from(own, other, random, along);
    /* The force acts along the vector from the other node, whose height is the sum of both. */
    double heights = (double)own->height + (double)other->height;
    double up_share = flat + heights > 0 ? heights / (flat + heights) : 0;
    double flat_share = flat > 0 ? flat / (flat + heights) : 1;
    for (unsigned i = 0; i < COORDINATE_AXES; i++) {
        own->at[i] = (int32_t)lrint(clamp((double)own->at[i] + force * flat_share * along[i], -most, most));
    }
    own->height = (uint32_t)lrint(clamp((double)own->height + force * up_share, HEIGHT_MIN, most));
    own->error_permille = (uint32_t)lrint(clamp(error, ERROR_MIN_PERMILLE, COORDINATE_ERROR_MAX));
}
