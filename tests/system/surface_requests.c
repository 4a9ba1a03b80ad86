#include "tests/system/surface.h"

/* Collectives with handles, persistent ones, and collectives in groups. */

void handles(size_t count)
{
    enum { FLIGHT = 12 };
    comm_request_t *requests[FLIGHT] = {NULL};
    fill(count * FLIGHT);
    poison(count * FLIGHT);
    for (size_t i = 0; i < FLIGHT; i++) {
        comm_call_options_t options = COMM_CALL_OPTIONS_INIT;
        options.request = &requests[i];
        options.stream = device != COMM_DEVICE_HOST && i % 3 == 0 ? COMM_STREAM_NONE : NULL;
        expect_ok(comm_all_reduce(comm, at(input + i * count), at(output + i * count), count, COMM_I64,
                                  i % 2 == 0 ? COMM_SUM : COMM_MAX, &options),
                  "comm_all_reduce");
    }
    size_t index;
    expect_ok(comm_wait_any(requests, FLIGHT, &index, NULL), "comm_wait_any");
    expect_ok(index < FLIGHT && requests[index] == NULL ? COMM_OK : COMM_INTERNAL, "comm_wait_any's index");
    for (int ended = 0; ended == 0;) {
        expect_ok(comm_test(&requests[FLIGHT - 1], &ended, NULL), "comm_test");
    }
    expect_ok(comm_wait_all(requests, FLIGHT, NULL), "comm_wait_all");
    get_output();
    checked += FLIGHT;
    for (size_t i = 0; i < count * FLIGHT; i++) {
        int64_t expected = sum_of(0, size, i);
        for (uint32_t r = 0; r < size && i / count % 2 == 1; r++) {
            expected = r == 0 || value(r, i) > expected ? value(r, i) : expected;
        }
        check_at("all_reduce by handle", i, expected);
    }
    check_poison("all_reduce by handle", count * FLIGHT, count * FLIGHT + 1);
}

void persistent(size_t count)
{
    comm_request_t *request = NULL;
    comm_call_options_t options = COMM_CALL_OPTIONS_INIT;
    options.request = &request;
    options.persistent = 1;
    expect_ok(comm_all_reduce(comm, at(input), at(output), count, COMM_I64, COMM_SUM, &options),
              "persistent");
    for (uint64_t again = 0; again < 5; again++) {
        turn += again << 32;
        fill(count);
        poison(count);
        expect_ok(comm_start(request), "comm_start");
        expect(comm_start(request), COMM_IN_PROGRESS, "comm_start twice");
        expect_ok(comm_wait(&request, NULL), "comm_wait");
        get_output();
        checked++;
        for (size_t i = 0; i < count; i++) {
            check_at("persistent all_reduce", i, sum_of(0, size, i));
        }
        turn -= again << 32;
    }
    comm_request_free(request);
}

void groups(size_t count)
{
    enum { MEMBERS = 40 };
    fill(count * MEMBERS);
    poison(count * MEMBERS + 8);
    comm_request_t *request = NULL;
    expect_ok(comm_group_begin(), "comm_group_begin");
    for (size_t i = 0; i < MEMBERS; i++) {
        comm_call_options_t options = COMM_CALL_OPTIONS_INIT;
        bool starts = i == MEMBERS / 2 && rank % 2 == 1; /* the same operation, in the same place */
        options.request = starts ? &request : NULL;
        options.persistent = starts;
        expect_ok(comm_all_reduce(comm, at(input + i * count), at(output + i * count), count, COMM_I64,
                                  COMM_SUM, &options),
                  "comm_all_reduce in a group");
        if (starts) {
            expect_ok(comm_start(request), "comm_start in a group");
        }
    }
    expect(comm_sync(comm, 0), COMM_INVALID_ARGUMENT, "comm_sync in a group");
    expect_ok(comm_group_end(), "comm_group_end");
    expect_ok(comm_wait(&request, NULL), "comm_wait after a group");
    comm_request_free(request);
    done();
    for (size_t i = 0; i < count * MEMBERS; i++) {
        check_at("all_reduces of a group", i, sum_of(0, size, i));
    }
}

static bool all_on_gpus(void)
{
    int64_t on_host = device == COMM_DEVICE_HOST;
    expect_ok(comm_all_reduce(comm, &on_host, &on_host, 1, COMM_I64, COMM_SUM, NULL), "comm_all_reduce");
    expect_ok(comm_sync(comm, 0), "comm_sync");
    return on_host == 0;
}

/* In a stream, collectives of a group that do not run as one use each other's results. */
void chains(size_t count)
{
    if (!all_on_gpus()) {
        return;
    }
    fill(count);
    poison((2 + size) * count);
    expect_ok(comm_group_begin(), "comm_group_begin");
    expect_ok(comm_all_reduce(comm, at(input), at(output), count, COMM_I64, COMM_SUM, NULL),
              "comm_all_reduce in a chain");
    expect_ok(comm_all_reduce(comm, at(output), at(output + count), count, COMM_I64, COMM_MAX, NULL),
              "comm_all_reduce of a result");
    expect_ok(comm_all_gather(comm, at(output + count), at(output + 2 * count), count, COMM_I64, NULL),
              "comm_all_gather of a result");
    expect_ok(comm_group_end(), "comm_group_end of a chain");
    done();
    for (size_t i = 0; i < (2 + size) * count; i++) {
        check_at("a chain in a group", i, sum_of(0, size, i % count));
    }
}
