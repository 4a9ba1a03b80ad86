#ifndef TESTS_UNIT_COMM_COMM_OPS_H
#define TESTS_UNIT_COMM_COMM_OPS_H

#include "proto/types.h"
#include "tests/unit/comm/comm_nodes.h"

/* Operations of members that are formed for them, and their buffers. */

static struct world world; /* large */

/* Forms a communicator whose ranks are spread over the nodes in turn. */
static inline void form_ops(struct member **members, unsigned nodes, uint32_t size, uint64_t op_timeout_ms,
                            const char *name)
{
    for (uint32_t rank = 0; rank < size; rank++) {
        struct comms_terms terms = {
            .name = name, .rank = rank, .size = size, .op_timeout_ms = op_timeout_ms, .slice_bytes = 64};
        members[rank] = join_as(&world, rank % nodes, &terms, 1000);
    }
    run(&world, 20 * TIME_MS);
    for (uint32_t rank = 0; rank < size; rank++) {
        assert_formed(members[rank]);
    }
}

struct buffer {
    int32_t *elements;
    struct memory *memory;
    uint32_t count;
};

static inline struct buffer buffer_new(uint32_t count, int32_t first, int32_t step)
{
    struct error error;
    struct buffer buffer = {.elements = malloc((count + 1) * sizeof(int32_t)), .count = count};
    assert_non_null(buffer.elements);
    for (uint32_t i = 0; i < count; i++) {
        buffer.elements[i] = first + (int32_t)i * step;
    }
    assert_int_equal(memory_wrap(buffer.elements, (count + 1) * sizeof(int32_t), &buffer.memory, &error),
                     STATUS_OK);
    return buffer;
}

static inline void buffer_free(struct buffer *buffer)
{
    memory_unref(buffer->memory);
    free(buffer->elements);
}

static inline enum status post(struct member *member, const struct comms_op *op, struct error *error)
{
    struct comms_op numbered = *op;
    numbered.ticket = member->posted + 1;
    member->calling = true;
    enum status status = comms_submit(member->handle, &numbered, world.now_ns, error);
    member->calling = false;
    if (status == STATUS_OK) {
        member->posted++;
    } else {
        assert_int_equal(error->status, status);
    }
    return status;
}

static inline void post_well(struct member *member, const struct comms_op *op)
{
    struct error error;
    if (post(member, op, &error) != STATUS_OK) {
        fail_msg("%s", error.text);
    }
}

static inline void assert_ended(const struct member *member, enum status status, const char *text)
{
    assert_int_equal(member->completed, member->posted);
    if (member->posted > 0) {
        assert_error(&member->results[member->posted], status, text);
    }
    assert_int_equal(member->aborted_count, 1);
    assert_error(&member->aborted, status, text);
}

/* Asks for the next generation. Returns the new rank's record; its handle is null if it was refused at once.
 */
static inline struct member *shrink_within(struct member *failed, uint64_t timeout_ms)
{
    assert_true(world.member_count < MEMBERS_MAX);
    struct member *member = &world.members[world.member_count++];
    struct comms_shrink options = {.form_timeout_ms = timeout_ms};
    memset(member, 0, sizeof *member);
    member->node = failed->node;
    member->client = failed->client;
    struct comms_member_handler handler = {
        .context = member, .formed = on_formed, .completed = on_completed, .aborted = on_aborted};
    member->calling = true;
    enum status status = comms_member_shrink(failed->handle, &options, &handler, world.now_ns,
                                             &member->handle, &member->join_result);
    member->calling = false;
    if (status != STATUS_OK) {
        assert_int_equal(status, member->join_result.status);
        member->handle = NULL;
    }
    return member;
}

#endif
