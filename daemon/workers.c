#include "daemon/workers.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "daemon/base/descriptor.h"
#include "daemon/base/log.h"
#include "daemon/base/placement.h"
#include "daemon/base/thread.h"
#include "daemon/base/time.h"
#include "daemon/comm/links.h"
#include "daemon/conf/rail_addresses.h"

#define WORKER_TURN_MAX_MS 3600000u
#define WORKER_LAST_TURNS 100
/* How long to poll after the last work, before waiting: about the time that it takes to be woken. */
#define WORKER_SPIN_NS (30 * TIME_US)

struct worker {
    struct workers *workers;
    uint32_t index;
    pthread_t thread;
    bool started;
    struct mail stop_mail;
    bool stopping;
    struct loop *loop;
    struct net *net; /* null without a network */
    bool has_network;
    struct exec *exec;
    int wake_fd;
    struct loop_watch *wake_watch;
    struct loop_timer *tick;
};

struct workers {
    struct rails *rails;
    struct mailbox mailboxes[EXEC_RAILS_MAX];
    struct worker list[EXEC_RAILS_MAX]; /* the first is the main thread's; no thread is made for it */
    uint32_t count;
    uint32_t rail_count;
    atomic_uint certificates_under_way; /* rails that do not use the latest ones yet, once for each reload */
    struct mesh *mesh;
    struct gpu_devices *gpus;
    struct stream_parking *parking;
};

long workers_processors(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : sysconf(_SC_NPROCESSORS_ONLN);
}

uint32_t workers_threads_default(long processors)
{
    long threads = processors <= 4 ? processors : processors / 2;
    return threads < 1 ? 1 : threads > 8 ? 8 : (uint32_t)threads;
}

uint32_t workers_rails_default(long processors)
{
    long rails = processors / 4;
    return rails < 1 ? 1 : rails > 4 ? 4 : (uint32_t)rails;
}

/* --- Wake-ups --- */

static void worker_ring(void *context)
{
    const struct worker *worker = context;
    uint64_t one = 1;
    ssize_t written;
    do {
        written = write(worker->wake_fd, &one, sizeof one);
    } while (written < 0 && errno == EINTR);
}

static void worker_rung(void *context, unsigned events, uint64_t now_ns)
{
    const struct worker *worker = context;
    uint64_t count;
    (void)events;
    (void)now_ns;
    (void)!read(worker->wake_fd, &count, sizeof count);
}

/* --- A thread --- */

static void worker_tick(void *context, uint64_t now_ns)
{
    struct worker *worker = context;
    exec_tick(worker->exec, now_ns);
}

static struct mailbox *worker_mailbox(const struct worker *worker)
{
    return &worker->workers->mailboxes[worker->index];
}

/* Polls for work for a while without waiting. While spinning it yields to other threads. */
static bool worker_spin(struct worker *worker)
{
    uint64_t end_ns = loop_now_ns() + WORKER_SPIN_NS;
    while (mailbox_is_empty(worker_mailbox(worker))) {
        if (loop_now_ns() > end_ns) {
            return false;
        }
        (void)sched_yield();
    }
    return true;
}

static bool worker_turn(struct worker *worker)
{
    uint64_t now_ns = loop_now_ns();
    bool more = rails_run_rail(worker->workers->rails, worker->index, now_ns);
    if (worker->has_network) {
        mesh_rail_run(worker->workers->mesh, worker->index, now_ns);
    }
    return more;
}

static uint64_t worker_deadline_ns(const struct worker *worker)
{
    uint64_t deadline_ns = rails_rail_deadline_ns(worker->workers->rails, worker->index);
    return worker->has_network
               ? time_min(deadline_ns, mesh_rail_deadline_ns(worker->workers->mesh, worker->index))
               : deadline_ns;
}

static void *worker_main(void *context)
{
    struct worker *worker = context;
    struct rails *rails = worker->workers->rails;
    struct error error;
    enum status status = STATUS_OK;
    while (!worker->stopping && status == STATUS_OK) {
        bool more = worker_turn(worker);
        if (worker->stopping) {
            break;
        }
        if (!worker->has_network && (more || worker_spin(worker))) {
            continue;
        }
        loop_timer_set(worker->tick, worker_deadline_ns(worker));
        bool wait = !more && mailbox_sleep(worker_mailbox(worker));
        status = loop_run_once(worker->loop, wait ? WORKER_TURN_MAX_MS : 0, &error);
    }
    /* Communicators were aborted before. The network releases their buffers in its next turns. */
    for (int i = 0; i < WORKER_LAST_TURNS && status == STATUS_OK && rails_rail_is_busy(rails, worker->index);
         i++) {
        (void)rails_run_rail(rails, worker->index, loop_now_ns());
        status = loop_run_once(worker->loop, 1, &error);
    }
    if (status != STATUS_OK) {
        log_error("thread %u: %s", worker->index, error.text);
        abort(); /* work that waits for this thread would wait for ever; the supervisor restarts commd */
    }
    return NULL;
}

static void worker_stop(void *context, uint64_t now_ns)
{
    (void)now_ns;
    ((struct worker *)context)->stopping = true;
}

struct certificates_mail {
    struct mail mail;
    struct worker *worker;
    struct quic_tls *tls;
};

static void worker_use_certificates(void *context, uint64_t now_ns)
{
    struct certificates_mail *mail = context;
    struct workers *workers = mail->worker->workers;
    (void)now_ns;
    net_quic_use(mail->worker->net, mail->tls);
    net_quic_unload(mail->tls);
    free(mail);
    if (atomic_fetch_sub(&workers->certificates_under_way, 1) == 1) {
        worker_ring(&workers->list[0]);
    }
}

/* --- Making them --- */

static enum status worker_make_net(struct worker *worker, const struct workers_options *all,
                                   struct error *error)
{
    const struct quic_options *quic = all->quic;
    char address[512];
    if (!worker->has_network) {
        return STATUS_OK;
    }
    struct quic_options options = *quic;
    if (!conf_rail_address(quic->bind_address, NULL, worker->index, address, sizeof address)) {
        return error_set(error, STATUS_CONFIG, "rails: listen = \"%s\" leaves no port for rail %u",
                         quic->bind_address, worker->index);
    }
    options.bind_address = address;
    enum status status = net_quic_new(worker->loop, &options, &worker->net, error);
    if (status == STATUS_OK && all->tls != NULL) {
        status = net_tls_attach(worker->net, worker->loop, all->tls, error);
    }
    if (status != STATUS_OK) {
        char text[sizeof error->text];
        (void)snprintf(text, sizeof text, "%s", error->text);
        return error_set(error, status, "rail %u: %s", worker->index, text);
    }
    return STATUS_OK;
}

static enum status worker_make(struct worker *worker, const struct workers_options *options,
                               struct error *error)
{
    enum status status = loop_new(&worker->loop, error);
    if (status == STATUS_OK) {
        status = worker_make_net(worker, options, error);
    }
    if (status == STATUS_OK) {
        status = exec_new(worker->net, &worker->exec, error);
    }
    if (status == STATUS_OK) {
        exec_set_gpus(worker->exec, worker->workers->gpus);
        net_set_clock(worker->net, loop_now_ns);
        net_set_parking(worker->net, worker->workers->parking);
        exec_set_clock(worker->exec, loop_now_ns);
    }
    if (status == STATUS_OK) {
        status = loop_timer_new(worker->loop, worker_tick, worker, &worker->tick, error);
    }
    return status;
}

static enum status worker_make_doorbell(struct worker *worker, struct loop *loop, struct error *error)
{
    struct mailbox *mailbox = worker_mailbox(worker);
    worker->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (worker->wake_fd < 0) {
        return error_set_errno(error, errno, "eventfd");
    }
    mailbox->wake = worker_ring;
    mailbox->wake_context = worker;
    return loop_watch_new(loop, worker->wake_fd, LOOP_READ, worker_rung, worker, &worker->wake_watch, error);
}

/* A rail runs near its network card, and the others near the ranks. */
static void worker_place(const struct worker *worker, const struct workers_options *options)
{
    char address[512];
    bool has_card =
        worker->has_network && options->address != NULL &&
        conf_rail_address(options->address, options->rail_addresses, worker->index, address, sizeof address);
    placement_add(options->placement, worker->thread, has_card ? address : NULL);
}

static enum status worker_start(struct worker *worker, struct error *error)
{
    char name[16];
    int failed = thread_start(&worker->thread, NULL, worker_main, worker);
    if (failed != 0) {
        return error_set(error, STATUS_SYSTEM, "a thread cannot be started: %s", strerror(failed));
    }
    worker->started = true;
    (void)snprintf(name, sizeof name, "commd-%s-%u", worker->has_network ? "rail" : "work", worker->index);
    (void)pthread_setname_np(worker->thread, name);
    return STATUS_OK;
}

static enum status workers_make_rails(struct workers *workers, const struct workers_options *options,
                                      struct error *error)
{
    struct exec *execs[EXEC_RAILS_MAX];
    struct net *nets[EXEC_RAILS_MAX];
    for (uint32_t i = 0; i < workers->count; i++) {
        execs[i] = i == 0 ? options->exec : workers->list[i].exec;
        nets[i] = workers->list[i].net;
    }
    struct rails_options rails = {.count = workers->count,
                                  .network_count = workers->rail_count,
                                  .execs = execs,
                                  .mailboxes = workers->mailboxes};
    struct mesh_rails_options links = {
        .count = workers->rail_count, .nets = nets, .mailboxes = workers->mailboxes};
    enum status status = rails_new(&rails, &workers->rails, error);
    if (status == STATUS_OK && workers->rail_count > 1 && options->quic != NULL) {
        status = links_join(options->mesh, options->exec, &links, error);
    }
    return status;
}

enum status workers_new(const struct workers_options *options, struct workers **out, struct error *error)
{
    struct workers *workers = calloc(1, sizeof *workers);
    if (workers == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "no memory for threads");
    }
    workers->count = options->thread_count;
    workers->rail_count = options->rail_count;
    workers->mesh = options->mesh;
    workers->gpus = options->gpus;
    workers->parking = options->parking;
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < workers->count; i++) {
        workers->list[i].workers = workers;
        workers->list[i].index = i;
        workers->list[i].wake_fd = -1;
        workers->list[i].has_network = i > 0 && i < options->rail_count && options->quic != NULL;
    }
    for (uint32_t i = 0; i < workers->count && status == STATUS_OK; i++) {
        struct worker *worker = &workers->list[i];
        status = i == 0 ? STATUS_OK : worker_make(worker, options, error);
        if (status == STATUS_OK) {
            status = worker_make_doorbell(worker, i == 0 ? options->loop : worker->loop, error);
        }
    }
    if (status == STATUS_OK) {
        status = workers_make_rails(workers, options, error);
    }
    for (uint32_t i = 1; i < workers->count && status == STATUS_OK; i++) {
        status = worker_start(&workers->list[i], error);
        if (status == STATUS_OK) {
            worker_place(&workers->list[i], options);
        }
    }
    if (status != STATUS_OK) {
        workers_free(workers);
        return status;
    }
    *out = workers;
    return STATUS_OK;
}

static void worker_end(struct worker *worker)
{
    if (worker->started) {
        worker->stop_mail = (struct mail){.deliver = worker_stop, .context = worker};
        mailbox_put(worker_mailbox(worker), &worker->stop_mail);
        (void)pthread_join(worker->thread, NULL);
    }
}

static void worker_free(struct worker *worker)
{
    exec_free(worker->exec);
    net_free(worker->net);
    loop_watch_free(worker->wake_watch);
    loop_timer_free(worker->tick);
    loop_free(worker->loop);
    descriptor_close(worker->wake_fd);
}

void workers_free(struct workers *workers)
{
    if (workers == NULL) {
        return;
    }
    for (uint32_t i = 1; i < workers->count; i++) {
        worker_end(&workers->list[i]);
    }
    mesh_end_rails(workers->mesh);
    rails_free(workers->rails, loop_now_ns());
    for (uint32_t i = 0; i < workers->count; i++) {
        worker_free(&workers->list[i]);
    }
    free(workers);
}

/* --- The main thread --- */

enum status workers_use_certificates(struct workers *workers, struct quic_tls *tls, struct error *error)
{
    for (uint32_t i = 1; i < workers->rail_count; i++) {
        struct worker *worker = &workers->list[i];
        if (!worker->has_network) {
            continue;
        }
        struct certificates_mail *mail = calloc(1, sizeof *mail);
        if (mail == NULL) {
            return error_set(error, STATUS_NO_MEMORY, "no memory for the certificates of rail %u", i);
        }
        mail->worker = worker;
        mail->tls = net_quic_share(tls);
        mail->mail = (struct mail){.deliver = worker_use_certificates, .context = mail};
        atomic_fetch_add(&workers->certificates_under_way, 1);
        mailbox_put(worker_mailbox(worker), &mail->mail);
    }
    return STATUS_OK;
}

bool workers_certificates_are_used(const struct workers *workers)
{
    return atomic_load(&workers->certificates_under_way) == 0;
}

bool workers_run(struct workers *workers, uint64_t now_ns)
{
    return mailbox_run(&workers->mailboxes[0], now_ns);
}

bool workers_sleep(struct workers *workers)
{
    return mailbox_sleep(&workers->mailboxes[0]);
}
