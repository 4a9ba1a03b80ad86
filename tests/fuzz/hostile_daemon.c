#include "tests/fuzz/hostile_daemon.h"

#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "proto/client.pb-c.h"
#include "proto/heartbeat.h"
#include "proto/records.h"
#include "proto/types.h"
#include "proto/version.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/scribble.h"
#include "tests/lib/fake_rings.h"
#include "tests/lib/send_fds.h"

#define PENDING_MAX 64
#define FILES_MAX 32
#define PASSED_MAX (CLIENT_RING_FDS + CLIENT_HEARTBEAT_FDS + 1)
#define ANSWERS_MAX 4096 /* most answers for one input */

/* A request or an operation for which the client waits. */
struct pending {
    Commd__Client__Request__BodyCase kind; /* NOT_SET: an operation */
    uint64_t id;
    struct submit_record record; /* if it is an operation */
};

static struct hostile {
    struct fuzz_input *input;
    bool runs;
    char path[64];
    int listen_fd, fd;
    struct fake_rings *rings;
    bool rings_taken; /* the client has their descriptors */
    /* the input has written into the rings, so packets in them may be wrong, too */
    bool scribbled;
    int passed[PASSED_MAX]; /* descriptors for the next packet; they still belong to the daemon */
    unsigned passed_count;
    int page_fd, ended_fd; /* the heartbeat's descriptors; -1: there is none */
    uint64_t now_ns;
    unsigned answers;
    struct pending pending[PENDING_MAX];
    unsigned pending_count;
    int files[FILES_MAX]; /* the client's memories, by number */
} hostile;

int clock_gettime(clockid_t clock, struct timespec *time)
{
    if (hostile.runs && clock == CLOCK_MONOTONIC) {
        hostile.now_ns += 1000;
        *time = (struct timespec){.tv_sec = (time_t)(hostile.now_ns / 1000000000u),
                                  .tv_nsec = (long)(hostile.now_ns % 1000000000u)};
        return 0;
    }
    return (int)syscall(SYS_clock_gettime, clock, time);
}

/* --- What the client sends --- */

static struct pending *pending_new(Commd__Client__Request__BodyCase kind)
{
    static struct pending none;
    struct pending *pending =
        hostile.pending_count < PENDING_MAX ? &hostile.pending[hostile.pending_count++] : &none;
    *pending = (struct pending){.kind = kind};
    return pending;
}

/* Checks that the library sends nothing wrong, whatever it was told. */
static void note_submissions(const uint8_t *packet, size_t size)
{
    struct submit_record record;
    const char *what;
    size_t record_bytes;
    for (size_t at = 0; at < size; at += record_bytes) {
        record_bytes = submit_record_read(packet + at, size - at, &record, &what);
        if (record_bytes == 0) {
            fuzz_require(hostile.scribbled);
            return;
        }
        if (record.kind == RECORD_OPERATION) {
            memcpy(&pending_new(COMMD__CLIENT__REQUEST__BODY__NOT_SET)->record, &record, record_bytes);
        }
    }
}

static void note_request(const uint8_t *packet, size_t size, int fd)
{
    if (packet_is_record(packet, size)) {
        note_submissions(packet, size);
        return;
    }
    Commd__Client__Request *request = commd__client__request__unpack(NULL, size, packet);
    if (request == NULL) {
        fuzz_require(hostile.scribbled);
        return;
    }
    if (request->body_case == COMMD__CLIENT__REQUEST__BODY_MEM_REGISTER && fd >= 0) {
        int *file = &hostile.files[request->mem_register->memory % FILES_MAX];
        if (*file >= 0) {
            close(*file);
        }
        *file = dup(fd);
    }
    pending_new(request->body_case)->id = request->id;
    commd__client__request__free_unpacked(request, NULL);
}

static void ring_bell(void)
{
    (void)!write(hostile.rings->client_bell[1], "", 1);
}

static void take_requests(void)
{
    static uint8_t packet[CLIENT_PACKET_MAX_BYTES];
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(4 * sizeof(int))];
    } control;
    if (hostile.fd < 0) {
        hostile.fd = accept4(hostile.listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    }
    while (hostile.fd >= 0) {
        struct iovec part = {.iov_base = packet, .iov_len = sizeof packet};
        struct msghdr message = {
            .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
        ssize_t size = recvmsg(hostile.fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        if (size <= 0) {
            break;
        }
        int fd = -1;
        const struct cmsghdr *item = CMSG_FIRSTHDR(&message);
        if (item != NULL && item->cmsg_type == SCM_RIGHTS) {
            memcpy(&fd, CMSG_DATA(item), sizeof fd);
        }
        note_request(packet, (size_t)size, fd);
        if (fd >= 0) {
            close(fd);
        }
    }
    size_t size;
    while (hostile.rings_taken && ring_take(&hostile.rings->in, packet, sizeof packet, &size) == RING_OK) {
        note_request(packet, size, -1);
        if (ring_wake_producer(&hostile.rings->in)) {
            ring_bell();
        }
    }
}

/* --- What the daemon sends --- */

static void say_bytes(const uint8_t *bytes, size_t size, bool by_socket)
{
    if (hostile.fd < 0 || size == 0) {
        return;
    }
    if (hostile.rings_taken && !by_socket && size <= ring_packet_max_bytes(CLIENT_RING_BYTES)) {
        (void)ring_put(&hostile.rings->out, bytes, size);
        if (ring_wake_consumer(&hostile.rings->out)) {
            ring_bell();
        }
        return;
    }
    (void)send_with_fds(hostile.fd, bytes, size, hostile.passed, hostile.passed_count, MSG_DONTWAIT);
    hostile.passed_count = 0;
}

/* Sends a packet as it is, or with changed bytes. */
static void say_packet(uint8_t *packet, size_t size, bool mutated)
{
    for (unsigned i = 0; mutated && size > 0 && i < 3; i++) {
        size_t at = fuzz_u8(hostile.input) % size;
        packet[at] = fuzz_u8(hostile.input);
    }
    say_bytes(packet, size, fuzz_below(hostile.input, 16) == 15);
}

static void say(const Commd__Client__Event *event, bool mutated)
{
    static uint8_t packet[2 * CLIENT_PACKET_MAX_BYTES];
    size_t size = commd__client__event__get_packed_size(event);
    if (size <= sizeof packet) {
        commd__client__event__pack(event, packet);
        say_packet(packet, size, mutated);
    }
}

static void say_reply(Commd__Client__Reply *reply, bool mutated)
{
    Commd__Client__Event event = COMMD__CLIENT__EVENT__INIT;
    event.body_case = COMMD__CLIENT__EVENT__BODY_REPLY;
    event.reply = reply;
    say(&event, mutated);
}

static void say_error(uint64_t id)
{
    static const char *const texts[] = {"no", "", "%s%n", "a\nb\x1b[0m"};
    Commd__Client__Error error = COMMD__CLIENT__ERROR__INIT;
    Commd__Client__Reply reply = COMMD__CLIENT__REPLY__INIT;
    error.status = (uint32_t)fuzz_number(hostile.input);
    error.text = (char *)(uintptr_t)texts[fuzz_below(hostile.input, 4)];
    reply.id = id;
    reply.body_case = COMMD__CLIENT__REPLY__BODY_ERROR;
    reply.error = &error;
    say_reply(&reply, false);
}

/* Writes bytes of the input to the output of an operation or of a split. */
static void write_output(const struct pending *pending)
{
    size_t taken;
    const struct record_entry *output = submit_record_find(&pending->record, RECORD_OUTPUT);
    int file = hostile.files[output != NULL ? output->memory % FILES_MAX : 0];
    if (output != NULL && file >= 0) {
        const uint8_t *bytes = fuzz_bytes(hostile.input, fuzz_below(hostile.input, 96), &taken);
        (void)!pwrite(file, bytes, taken, (off_t)output->offset_bytes);
    }
}

static void say_completion(const struct pending *pending, bool wrong, bool mutated)
{
    struct completion_record completion;
    write_output(pending);
    completion_record_begin(&completion, pending->record.handle, pending->record.ticket);
    if (wrong) {
        completion.handle += fuzz_below(hostile.input, 3);
        completion.ticket += fuzz_number(hostile.input);
        uint16_t status = (uint16_t)fuzz_number(hostile.input);
        if (status != STATUS_OK) {
            completion_record_fail(&completion, STATUS_LIMIT, "why");
            completion.status = status;
        }
        completion.source_rank = (uint32_t)fuzz_number(hostile.input);
        completion.count_elements = fuzz_number(hostile.input);
    }
    say_packet((uint8_t *)&completion, completion_record_bytes(&completion), mutated);
}

static void say_aborted(void)
{
    Commd__Client__Aborted aborted = COMMD__CLIENT__ABORTED__INIT;
    Commd__Client__Event event = COMMD__CLIENT__EVENT__INIT;
    aborted.handle = fuzz_u8(hostile.input);
    aborted.status = (uint32_t)fuzz_number(hostile.input);
    aborted.text = (char *)(uintptr_t) "aborted";
    event.body_case = COMMD__CLIENT__EVENT__BODY_ABORTED;
    event.aborted = &aborted;
    say(&event, false);
}

static void make_heart(uint8_t how)
{
    if (hostile.page_fd < 0) {
        hostile.page_fd = memfd_create("fuzz-heart", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        hostile.ended_fd = eventfd(how & 1, EFD_CLOEXEC | EFD_NONBLOCK);
        fuzz_require(hostile.page_fd >= 0 && hostile.ended_fd >= 0 && ftruncate(hostile.page_fd, 4096) == 0);
        (void)fcntl(hostile.page_fd, F_ADD_SEALS, (how & 128) != 0 ? F_SEAL_GROW : F_SEAL_SHRINK);
    }
}

/* Offers rings and a heartbeat, mostly with the right descriptors in the right order. */
static void offer(Commd__Client__HelloReply *hello, char *features[2], uint8_t how)
{
    hello->features = features;
    hostile.passed_count = 0;
    if ((how & 1) != 0) {
        features[hello->n_features++] = (char *)(uintptr_t)CLIENT_FEATURE_RINGS;
        hostile.rings = hostile.rings != NULL ? hostile.rings : fake_rings_new();
        fake_rings_client_fds(hostile.rings, hostile.passed);
        hostile.passed_count = CLIENT_RING_FDS;
    }
    if ((how & 2) != 0) {
        features[hello->n_features++] = (char *)(uintptr_t)CLIENT_FEATURE_HEARTBEAT;
        make_heart(how);
        hostile.passed[hostile.passed_count++] = hostile.page_fd;
        hostile.passed[hostile.passed_count++] = hostile.ended_fd;
    }
    if ((how & 12) == 12 && hostile.passed_count > 0) {
        uint32_t place = fuzz_below(hostile.input, hostile.passed_count);
        int *other = &hostile.passed[fuzz_below(hostile.input, hostile.passed_count)];
        int first = hostile.passed[place];
        hostile.passed[place] = *other;
        *other = first;
    }
    if ((how & 48) == 48) { /* one descriptor more, or one less */
        hostile.passed[hostile.passed_count] = hostile.listen_fd;
        hostile.passed_count += (how & 64) != 0 || hostile.passed_count == 0 ? 1u : -1u;
    }
}

static void answer_hello(Commd__Client__Reply *reply, bool wrong, bool mutated)
{
    Commd__Client__HelloReply hello = COMMD__CLIENT__HELLO_REPLY__INIT;
    char *features[2];
    hello.protocol_version = wrong ? (uint32_t)fuzz_number(hostile.input) : CLIENT_PROTOCOL_VERSION;
    hello.pending_ops_max = wrong ? (uint32_t)fuzz_number(hostile.input) : 1024;
    hello.packet_max_bytes = CLIENT_PACKET_MAX_BYTES;
    offer(&hello, features, fuzz_u8(hostile.input));
    reply->body_case = COMMD__CLIENT__REPLY__BODY_HELLO;
    reply->hello = &hello;
    say_reply(reply, mutated);
    hostile.rings_taken = hostile.rings != NULL;
}

static void answer_init(Commd__Client__Reply *reply, bool wrong, bool mutated)
{
    Commd__Client__CommInitReply init = COMMD__CLIENT__COMM_INIT_REPLY__INIT;
    init.comm_id = 7;
    init.generation = 1;
    init.local_size = wrong ? (uint32_t)fuzz_number(hostile.input) : 2;
    init.local_rank = wrong ? (uint32_t)fuzz_number(hostile.input) : 0;
    init.node_count = wrong ? (uint32_t)fuzz_number(hostile.input) : 1;
    reply->body_case = COMMD__CLIENT__REPLY__BODY_COMM_INIT;
    reply->comm_init = &init;
    say_reply(reply, mutated);
}

static void answer_table(Commd__Client__Reply *reply, bool wrong, bool mutated)
{
    static char *names[CLIENT_TABLE_NODES_MAX + 1];
    static uint32_t nodes[CLIENT_TABLE_RANKS_MAX + 1];
    Commd__Client__CommTableReply table = COMMD__CLIENT__COMM_TABLE_REPLY__INIT;
    for (size_t i = 0; i <= CLIENT_TABLE_NODES_MAX; i++) {
        names[i] = (char *)(uintptr_t) "node";
    }
    for (size_t i = 0; i <= CLIENT_TABLE_RANKS_MAX; i++) {
        nodes[i] = 0;
    }
    table.n_node_of_rank = wrong ? fuzz_number(hostile.input) % (CLIENT_TABLE_RANKS_MAX + 2) : 2;
    table.n_node_names = wrong ? fuzz_number(hostile.input) % (CLIENT_TABLE_NODES_MAX + 2) : 1;
    nodes[fuzz_below(hostile.input, 4)] = wrong ? (uint32_t)fuzz_number(hostile.input) : 0;
    table.node_of_rank = nodes;
    table.node_names = names;
    reply->body_case = COMMD__CLIENT__REPLY__BODY_COMM_TABLE;
    reply->comm_table = &table;
    say_reply(reply, mutated);
}

static void answer(const struct pending *pending, bool wrong, bool mutated)
{
    Commd__Client__Reply reply = COMMD__CLIENT__REPLY__INIT;
    Commd__Client__Done done = COMMD__CLIENT__DONE__INIT;
    reply.id = pending->id + (wrong ? fuzz_below(hostile.input, 2) : 0);
    switch ((int)pending->kind) {
    case COMMD__CLIENT__REQUEST__BODY_HELLO:
        answer_hello(&reply, wrong, mutated);
        return;
    case COMMD__CLIENT__REQUEST__BODY_COMM_INIT:
        answer_init(&reply, wrong, mutated);
        return;
    case COMMD__CLIENT__REQUEST__BODY_COMM_TABLE:
        answer_table(&reply, wrong, mutated);
        return;
    case COMMD__CLIENT__REQUEST__BODY__NOT_SET:
        say_completion(pending, wrong, mutated);
        return;
    default:
        reply.body_case = COMMD__CLIENT__REPLY__BODY_DONE;
        reply.done = &done;
        say_reply(&reply, mutated);
        return;
    }
}

/* Takes one of the requests for which the client waits, by default the oldest. */
static struct pending next_pending(uint8_t what)
{
    struct pending none = {.kind = COMMD__CLIENT__REQUEST__BODY_STATUS, .id = fuzz_u8(hostile.input)};
    if (hostile.pending_count == 0) {
        return none;
    }
    unsigned at = what >= 240 ? what % hostile.pending_count : 0;
    struct pending pending = hostile.pending[at];
    hostile.pending_count--;
    memmove(&hostile.pending[at], &hostile.pending[at + 1],
            (hostile.pending_count - at) * sizeof hostile.pending[0]);
    return pending;
}

static void hang_up(void)
{
    if (hostile.fd >= 0) {
        close(hostile.fd);
        hostile.fd = -1;
    }
    if (hostile.listen_fd >= 0) {
        close(hostile.listen_fd); /* the client cannot connect again */
        hostile.listen_fd = -1;
    }
}

/* Writes into either ring: heads, tails, sleep flags, lengths, packets. */
static void spoil_rings(void)
{
    if (!hostile.rings_taken) {
        return;
    }
    uint8_t where = fuzz_u8(hostile.input);
    hostile.scribbled = true;
    if (where < FAKE_ABUSE_COUNT) {
        fake_rings_abuse(hostile.rings, (enum fake_abuse)where);
        return;
    }
    fuzz_ring_scribble((where & 1) != 0 ? &hostile.rings->in : &hostile.rings->out, hostile.input);
}

static void act(void)
{
    uint8_t what = fuzz_u8(hostile.input);
    struct pending pending;
    size_t taken;
    if (fuzz_ended(hostile.input) || ++hostile.answers > ANSWERS_MAX) {
        hang_up();
        return;
    }
    switch (what % 16) {
    default:
        pending = next_pending(what);
        answer(&pending, false, false);
        return;
    case 9:
        pending = next_pending(what);
        answer(&pending, true, false);
        return;
    case 10:
        pending = next_pending(what);
        answer(&pending, false, true);
        return;
    case 11:
        pending = next_pending(what);
        say_error(what < 128 ? pending.id : 0);
        return;
    case 12:
        say_aborted();
        return;
    case 13:
        if (what < 128) {
            const uint8_t *bytes = fuzz_bytes(hostile.input, fuzz_u8(hostile.input), &taken);
            say_bytes(bytes, taken, (what & 16) != 0);
        } else {
            spoil_rings();
        }
        return;
    case 14:
        hostile.now_ns += (uint64_t)fuzz_u8(hostile.input) * 1000000000u;
        if (hostile.page_fd >= 0 && what < 128) {
            (void)!pwrite(hostile.page_fd, &hostile.now_ns, sizeof hostile.now_ns, 0); /* the heart beats */
        }
        return;
    case 15:
        if (what == 255) {
            hang_up();
        } else {
            pending = next_pending(what);
            answer(&pending, false, false);
            answer(&pending, false, false); /* answers a second time */
        }
        return;
    }
}

/* Replaces libc's poll(), in which the library waits. */
int poll(struct pollfd *fds, nfds_t count, int timeout_ms)
{
    struct timespec none = {0};
    if (hostile.runs) {
        take_requests();
        act();
        hostile.now_ns += timeout_ms > 0 ? 1000000u : 0;
        return (int)syscall(SYS_ppoll, fds, count, &none, NULL, 0);
    }
    struct timespec limit = {.tv_sec = timeout_ms / 1000, .tv_nsec = timeout_ms % 1000 * 1000000L};
    return (int)syscall(SYS_ppoll, fds, count, timeout_ms >= 0 ? &limit : NULL, NULL, 0);
}

/* --- Start and stop --- */

static void make_path(void)
{
    if (hostile.path[0] == '\0') {
        snprintf(hostile.path, sizeof hostile.path, "/tmp/commd-fuzz-%d.sock", (int)getpid());
    }
}

void hostile_daemon_start(struct fuzz_input *input)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    make_path();
    strcpy(address.sun_path, hostile.path);
    hostile.input = input;
    hostile.fd = -1;
    hostile.rings = NULL;
    hostile.rings_taken = hostile.scribbled = false;
    hostile.passed_count = 0;
    hostile.page_fd = hostile.ended_fd = -1;
    hostile.answers = hostile.pending_count = 0;
    hostile.now_ns = UINT64_C(1000) * 1000000000u;
    for (int i = 0; i < FILES_MAX; i++) {
        hostile.files[i] = -1;
    }
    hostile.listen_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    (void)unlink(hostile.path);
    fuzz_require(hostile.listen_fd >= 0 &&
                 bind(hostile.listen_fd, (struct sockaddr *)&address, sizeof address) == 0 &&
                 listen(hostile.listen_fd, 4) == 0);
    hostile.runs = true;
}

const char *hostile_path(void)
{
    return hostile.path;
}

void hostile_daemon_stop(void)
{
    hostile.runs = false;
    hang_up();
    if (hostile.rings != NULL) {
        fake_rings_free(hostile.rings);
    }
    if (hostile.page_fd >= 0) {
        close(hostile.page_fd);
        close(hostile.ended_fd);
    }
    for (int i = 0; i < FILES_MAX; i++) {
        if (hostile.files[i] >= 0) {
            close(hostile.files[i]);
        }
    }
    (void)unlink(hostile.path);
}
