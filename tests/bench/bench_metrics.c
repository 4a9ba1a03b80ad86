#include "tests/unit/api/metrics_node.h"

#include <time.h>

/*
 * Measures how long a scrape of the metrics takes of the main loop's time, and its size. There are 64 peers,
 * 4 rails and 100 communicators, with operations of every kind, size and bucket. The bars: 5 ms and 512 KiB.
 */
#define ROUNDS 200

static int compare(const void *left, const void *right)
{
    uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
    return (a > b) - (a < b);
}

int main(void)
{
    static uint64_t times_ns[ROUNDS];
    size_t size_bytes = 0;
    struct metrics_node *own = metrics_node_new(64, 4, NULL);
    metrics_node_fill_ops(own);
    metrics_node_form(own, 100);
    for (unsigned i = 0; i < ROUNDS; i++) {
        struct metrics_text text;
        uint64_t began_ns = loop_now_ns();
        metrics_text_begin(&text, METRICS_OPENMETRICS, 1 << 20);
        metrics_write(own->node->api, &text, began_ns);
        metrics_text_end(&text);
        times_ns[i] = loop_now_ns() - began_ns;
        size_bytes = text.used_bytes;
        metrics_text_free(&text);
    }
    qsort(times_ns, ROUNDS, sizeof times_ns[0], compare);
    printf("a scrape: %zu bytes, median %.3f ms, worst %.3f ms\n", size_bytes,
           (double)times_ns[ROUNDS / 2] / (double)TIME_MS, (double)times_ns[ROUNDS - 1] / (double)TIME_MS);
    client_free(&own->client);
    metrics_node_free(own);
    return size_bytes <= 512u << 10 && times_ns[ROUNDS / 2] <= 5 * TIME_MS ? 0 : 1;
}
