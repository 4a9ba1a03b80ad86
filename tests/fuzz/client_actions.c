#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/base/time.h"
#include "proto/types.h"
#include "tests/fuzz/client_node.h"

/* Sequences of what clients do. Also tracks where commd may write in their memory, and checks at the end
 * that it wrote nowhere else. */

#define SETTLE_ROUNDS_MAX 4096
#define SETTLE_QUIET_ROUNDS 3
#define BLOCKS_MAX 64 /* more than the ranks of any communicator that an input can form */

/* --- Where commd may write --- */

static void touch(struct fuzz_session *session, const struct record_entry *range, uint64_t offset_bytes,
                  uint64_t size)
{
    uint8_t files = range != NULL ? session->files_of_memory[range->memory % FUZZ_FILES] : 0;
    for (int i = 0; i < FUZZ_FILES; i++) {
        if ((files >> i & 1) != 0) {
            fuzz_file_touch(&session->all->files[i], offset_bytes, size);
        }
    }
}

static void on_submitted(void *context, const struct submit_record *submit)
{
    struct fuzz_session *session = context;
    const struct record_entry *ended = submit_record_find(submit, RECORD_ENDED);
    const struct record_entry *output = submit_record_find(submit, RECORD_OUTPUT);
    const struct record_entry *residual = submit_record_find(submit, RECORD_RESIDUAL);
    const struct op_terms *terms = &submit->terms;
    const char *what;
    uint64_t bytes = 0;
    session->all->waits_long |= submit->timeout_ms * TIME_MS > FUZZ_PATIENCE_NS / 2;
    touch(session, ended, ended != NULL ? ended->offset_bytes : 0, sizeof(uint64_t));
    for (unsigned i = 0; submit->kind == RECORD_CAPTURED && i < submit->entry_count; i++) {
        const struct record_entry *entry = &submit->entries[i];
        if (entry->what == RECORD_WAIT) { /* commd sets it to 0 */
            touch(session, entry, entry->offset_bytes, sizeof(uint64_t));
        }
    }
    if (submit->kind == RECORD_EVENT || !op_terms_are_valid(terms, &what)) {
        return;
    }
    uint64_t blocks = op_kind_has_blocks(terms->kind) ? BLOCKS_MAX : 1;
    if (terms->has_layouts || __builtin_mul_overflow(terms->count_elements, 16 * blocks, &bytes)) {
        touch(session, output, 0, UINT64_MAX);
        touch(session, residual, 0, UINT64_MAX);
        return;
    }
    touch(session, output, output != NULL ? output->offset_bytes : 0,
          terms->count_elements * dtype_size_bytes(terms->dtype) * blocks);
    touch(session, residual, residual != NULL ? residual->offset_bytes : 0,
          terms->count_elements * sizeof(float));
}

static void on_asked(void *context, const Commd__Client__Request *request)
{
    struct fuzz_session *session = context;
    switch ((int)request->body_case) {
    case COMMD__CLIENT__REQUEST__BODY_MEM_REGISTER:
        if (session->sent_file >= 0) {
            session->files_of_memory[request->mem_register->memory % FUZZ_FILES] |=
                (uint8_t)(1u << session->sent_file);
        }
        return;
    case COMMD__CLIENT__REQUEST__BODY_COMM_INIT:
        session->all->waits_long |=
            request->comm_init->form_timeout_ms > 100000 || request->comm_init->op_timeout_ms > 100000;
        return;
    case COMMD__CLIENT__REQUEST__BODY_PING:
        session->all->waits_long |= request->ping->timeout_ms > 100000;
        return;
    default:
        return;
    }
}

/* --- Actions --- */

static void connect_session(struct fuzz_session *session)
{
    fuzz_client_close(&session->client);
    memset(session->files_of_memory, 0, sizeof session->files_of_memory);
    session->sent_file = -1;
    session->client.asked = on_asked;
    session->client.submitted = on_submitted;
    session->client.asked_context = session;
    fuzz_client_connect(&session->client, &session->all->node, session->uid);
}

void fuzz_sessions_start(struct fuzz_sessions *all, bool rings)
{
    (void)signal(SIGPIPE, SIG_IGN); /* commd ignores it too: a session may have ended when its bell rings */
    memset(all, 0, sizeof *all);
    fuzz_clock_start();
    fuzz_node_start(&all->node);
    fuzz_files_new(all->files);
    for (uint32_t i = 0; i < FUZZ_CLIENTS; i++) {
        all->sessions[i] = (struct fuzz_session){.all = all, .uid = 1001 + i / 2, .client = {.fd = -1}};
        connect_session(&all->sessions[i]);
        fuzz_client_hello(&all->sessions[i].client, rings);
    }
    fuzz_node_turn(&all->node);
    for (uint32_t i = 0; i < FUZZ_CLIENTS && rings; i++) {
        (void)fuzz_client_read(&all->sessions[i].client);
        fuzz_require(all->sessions[i].client.shared != NULL);
    }
}

static void send_garbage(struct fuzz_session *session, struct fuzz_input *input)
{
    int fds[3];
    size_t taken;
    uint8_t first = fuzz_u8(input);
    unsigned fd_count = first % 16 < 13 ? 0 : first % 16 - 12u;
    const struct fuzz_file *file = &session->all->files[first / 16 % FUZZ_FILES];
    for (unsigned i = 0; i < fd_count; i++) {
        fds[i] = file->fd >= 0 ? file->fd : STDERR_FILENO;
    }
    session->sent_file = fd_count > 0 && file->fd >= 0 ? (int)(first / 16 % FUZZ_FILES) : -1;
    const uint8_t *bytes = fuzz_bytes(input, fuzz_u8(input), &taken);
    (void)fuzz_client_send(&session->client, bytes, taken, fds, fd_count);
}

/* Changes contents, layouts or words that operations read, makes a hole, or cuts the file for a moment. */
static void change_file(struct fuzz_sessions *all, struct fuzz_input *input)
{
    struct fuzz_file *file = &all->files[fuzz_below(input, FUZZ_FILES)];
    uint64_t offset = fuzz_below(input, 64) * UINT64_C(8);
    uint8_t which = fuzz_u8(input);
    uint64_t numbers[8];
    if (file->fd >= 0 && which >= 224) {
        if (fallocate(file->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096) == 0 && file->compares) {
            memset(file->bounce, 0, file->size < 4096 ? (size_t)file->size : 4096);
        }
        return;
    }
    for (size_t i = 0; i <= which % 8u; i++) {
        numbers[i] = fuzz_number(input);
    }
    fuzz_file_write(file, offset, numbers, (which % 8u + 1) * sizeof *numbers);
    if (which >= 192 && file->fd >= 0) {
        /* A seal may forbid the cut. Another seal may forbid to grow the file again. */
        bool cut = ftruncate(file->fd, (off_t)(file->size / 2)) == 0;
        if (cut && ftruncate(file->fd, (off_t)file->size) != 0) {
            file->compares = false;
        }
        fuzz_file_touch(file, 0, UINT64_MAX); /* its second half is now zeros, or unchanged */
    }
}

void fuzz_act(struct fuzz_sessions *all, struct fuzz_input *input)
{
    static const uint64_t spans_ns[] = {0, TIME_MS, 100 * TIME_MS, 5 * TIME_S, 61 * TIME_S};
    uint8_t what = fuzz_u8(input);
    struct fuzz_session *session = &all->sessions[(what >> 6) % FUZZ_CLIENTS];
    switch (what & 15) {
    case 0:
        fuzz_node_turns(&all->node, 1 + fuzz_below(input, 4));
        return;
    case 1:
        fuzz_node_advance(&all->node, spans_ns[fuzz_below(input, sizeof spans_ns / sizeof *spans_ns)]);
        return;
    case 2:
        change_file(all, input);
        return;
    case 3:
        send_garbage(session, input);
        return;
    case 4:
        if (fuzz_below(input, 2) == 0) {
            connect_session(session);
        } else {
            (void)shutdown(session->client.fd, (int)fuzz_below(input, 3));
            session->client.ended = true;
        }
        return;
    case 5:
        fuzz_client_close(&session->client);
        return;
    case 6:
        (void)fuzz_client_read(&session->client);
        return;
    default:
        fuzz_request_send(session, input);
        if ((what & 16) != 0) {
            fuzz_node_turn(&all->node);
        }
        return;
    }
}

/* Runs the node until no answer has come for SETTLE_QUIET_ROUNDS turns. */
static void settle(struct fuzz_sessions *all)
{
    unsigned quiet = 0;
    for (unsigned i = 0; i < SETTLE_ROUNDS_MAX && quiet < SETTLE_QUIET_ROUNDS; i++) {
        fuzz_node_turn(&all->node);
        quiet++;
        for (unsigned j = 0; j < FUZZ_CLIENTS; j++) {
            if (fuzz_client_read(&all->sessions[j].client) > 0) {
                quiet = 0;
            }
        }
    }
}

void fuzz_sessions_end(struct fuzz_sessions *all)
{
    settle(all);
    fuzz_node_advance(&all->node, FUZZ_PATIENCE_NS);
    settle(all);
    for (unsigned i = 0; i < FUZZ_CLIENTS && !all->waits_long; i++) {
        fuzz_client_check_answered(&all->sessions[i].client);
    }
    for (unsigned i = 0; i < FUZZ_CLIENTS; i++) {
        fuzz_client_close(&all->sessions[i].client);
    }
    fuzz_node_stop(&all->node);
    for (unsigned i = 0; i < FUZZ_FILES; i++) {
        fuzz_file_check(&all->files[i]);
        fuzz_file_close(&all->files[i]);
    }
    fuzz_clock_stop();
}
