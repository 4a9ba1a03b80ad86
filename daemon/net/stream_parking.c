#include "daemon/net/stream_parking.h"

#include "daemon/base/array.h"

void stream_parking_init(struct stream_parking *parking)
{
    (void)pthread_mutex_init(&parking->lock, NULL); /* the default one: it cannot fail */
}

void stream_parking_free(struct stream_parking *parking)
{
    (void)pthread_mutex_destroy(&parking->lock);
    free(parking->of_peer);
}

static bool make_peer(struct stream_parking *parking, uint32_t peer)
{
    /* The peer's index is less than NET_PEERS_MAX. */
    struct stream_parking_peer *of_peer =
        array_reserve(parking->of_peer, &parking->peers, sizeof *of_peer, peer + 1);
    parking->of_peer = of_peer != NULL ? of_peer : parking->of_peer;
    return of_peer != NULL;
}

bool stream_parking_count(struct stream_parking *parking, uint32_t peer, uint64_t from, uint64_t to)
{
    if (from == to) {
        return true;
    }
    (void)pthread_mutex_lock(&parking->lock); /* fails only if used wrongly */
    bool fits = make_peer(parking, peer);
    if (fits) {
        uint64_t of_all = parking->bytes - from + to, of_peer = parking->of_peer[peer].bytes - from + to;
        fits =
            to < from || (of_all <= STREAM_PARKED_MAX_BYTES && of_peer <= STREAM_PARKED_MAX_BYTES - of_all);
        parking->bytes = fits ? of_all : parking->bytes;
        parking->of_peer[peer].bytes = fits ? of_peer : parking->of_peer[peer].bytes;
    }
    (void)pthread_mutex_unlock(&parking->lock);
    return fits;
}

bool stream_parking_begun(struct stream_parking *parking, uint32_t peer, bool has_begun)
{
    (void)pthread_mutex_lock(&parking->lock);
    uint32_t *begun = &parking->of_peer[peer].begun;
    *begun += has_begun ? 1 : -1u;
    bool fits = *begun <= STREAM_BEGUN_MAX;
    (void)pthread_mutex_unlock(&parking->lock);
    return fits;
}
