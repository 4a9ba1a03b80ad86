#include "daemon/exec/tuner.h"
#include "daemon/exec/exec_device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "daemon/base/log.h"
#include "daemon/base/random.h"
#include "daemon/gpu/scratch.h"

#define TUNER_WANTED_MAX 16
#define TUNER_LOOK_NS TIME_MS        /* between looks whether the exec is idle */
#define TUNER_RETRY_NS (60 * TIME_S) /* after a failure; twice as long after each further one */
#define TUNER_RETRY_MAX_NS (3600 * TIME_S)
#define TUNER_SAMPLES_MAX 6           /* of each engine; the first one is left out: it also connects GPUs */
#define TUNER_CELL_NS (20 * TIME_MS)  /* of each engine; then two samples are enough */
#define TUNER_SLOW_NS (100 * TIME_MS) /* sizes that would take longer are left out */
#define TUNER_MOST_BYTES (UINT64_C(128) << 20) /* on each GPU: an input and an output */
#define TUNER_LEAST_BYTES (UINT64_C(8) << 20)
#define TUNER_SAMPLE_MAX_NS (10 * TIME_S) /* then something hangs */
#define TUNER_END_MS 1000

static const enum op_kind kinds[] = {OP_KIND_ALL_REDUCE, OP_KIND_REDUCE,         OP_KIND_BROADCAST,
                                     OP_KIND_ALL_GATHER, OP_KIND_REDUCE_SCATTER, OP_KIND_ALL_TO_ALL,
                                     OP_KIND_GATHER,     OP_KIND_SCATTER};
static const uint64_t sizes[] = {4096, 65536, 512u << 10, 2u << 20, 16u << 20, 64u << 20};
#define KIND_COUNT (sizeof kinds / sizeof kinds[0])
#define SIZE_COUNT (sizeof sizes / sizeof sizes[0])
_Static_assert(KIND_COUNT *SIZE_COUNT <= GPU_TUNING_ROWS_MAX, "all rows fit into a set");

enum { BY_NCCL, WITHOUT_NCCL, ENGINES };

/* A set of GPUs to be measured. */
struct wanted {
    uint32_t count;
    uint32_t list[GPU_DEVICES_MAX];
    uint64_t from_ns; /* not before */
    uint64_t pause_ns;
};

struct tuner {
    struct exec *exec;
    struct gpu_tuning *table;
    struct wanted wanted[TUNER_WANTED_MAX];
    uint32_t wanted_count;
    uint64_t deadline_ns;
    enum {
        TUNER_RESTS,
        TUNER_ALLOCATES,
        TUNER_MEASURES,
        TUNER_LEAVES, /* waits for the end of its last operation */
        TUNER_FREES
    } state;

    /* The measurement under way, of wanted[at]. */
    uint32_t at;
    struct gpu_scratch *scratch;
    struct exec_comm *comm;
    uint64_t seq;
    uint64_t began_ns, sample_ns; /* when the measurement, and its last operation, began */
    uint32_t kind, size;          /* indexes */
    uint32_t samples[ENGINES];
    uint64_t best_ns[ENGINES], spent_ns[ENGINES];
    bool is_running; /* an operation is */
    bool failed;
    struct error why;
    struct gpu_tuning_set set;
};

enum status tuner_new(struct exec *exec, struct gpu_tuning *table, struct tuner **out, struct error *error)
{
    struct tuner *tuner = calloc(1, sizeof *tuner);
    if (tuner == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "no memory for the tuning of GPUs");
    }
    tuner->exec = exec;
    tuner->table = table;
    tuner->deadline_ns = TIME_NEVER;
    *out = tuner;
    return STATUS_OK;
}

static uint64_t clock_of(const struct tuner *tuner, uint64_t now_ns)
{
    return tuner->exec->spending.clock != NULL ? tuner->exec->spending.clock() : now_ns;
}

/* --- What is wanted --- */

static uint32_t wanted_index(const struct tuner *tuner, const uint32_t *list, uint32_t count)
{
    uint32_t index = 0;
    while (index < tuner->wanted_count &&
           (tuner->wanted[index].count != count ||
            memcmp(tuner->wanted[index].list, list, count * sizeof *list) != 0)) {
        index++;
    }
    return index;
}

uint32_t tuner_count(const struct tuner *tuner)
{
    return tuner->wanted_count;
}

static void want(struct tuner *tuner, const uint32_t *list, uint32_t count, uint64_t now_ns)
{
    uint32_t index = wanted_index(tuner, list, count);
    if (index < tuner->wanted_count || index == TUNER_WANTED_MAX) {
        return;
    }
    struct wanted *wanted = &tuner->wanted[tuner->wanted_count++];
    *wanted = (struct wanted){.count = count, .from_ns = now_ns, .pause_ns = TUNER_RETRY_NS};
    memcpy(wanted->list, list, count * sizeof *list);
    if (tuner->state == TUNER_RESTS) {
        tuner->deadline_ns = now_ns;
    }
}

bool tuner_prefers_nccl(struct tuner *tuner, const struct exec_op *op, bool otherwise, uint64_t now_ns)
{
    uint32_t gpus[GPU_DEVICES_MAX];
    uint32_t count = device_gpus(op, gpus);
    const struct gpu_tuning_set *set = gpu_tuning_find(tuner->table, gpus, count);
    if (set == NULL) {
        want(tuner, gpus, count, now_ns);
        return otherwise;
    }
    return gpu_tuning_prefers_nccl(set, op->call.terms.kind, device_bytes(op), otherwise);
}

bool tuner_prefers_nccl_for_slices(struct tuner *tuner, const struct exec_op *op, uint64_t slice_bytes,
                                   uint64_t now_ns)
{
    uint32_t gpus[GPU_DEVICES_MAX];
    uint32_t count = device_gpus(op, gpus);
    const struct gpu_tuning_set *set = gpu_tuning_find(tuner->table, gpus, count);
    uint64_t bytes = device_bytes(op) < slice_bytes ? device_bytes(op) : slice_bytes;
    double in_nccl_ns = 0, in_without_ns = 0, out_nccl_ns, out_without_ns;
    if (set == NULL) {
        want(tuner, gpus, count, now_ns);
        return false;
    }
    if (op_kind_reduces(op->call.terms.kind) &&
        !gpu_tuning_predict(set, OP_KIND_REDUCE_SCATTER, bytes, &in_nccl_ns, &in_without_ns)) {
        return false;
    }
    return gpu_tuning_predict(set, OP_KIND_ALL_GATHER, bytes, &out_nccl_ns, &out_without_ns) &&
           in_nccl_ns + out_nccl_ns < in_without_ns + out_without_ns;
}

static bool reach_alike(const struct tuner *tuner, const uint32_t *pair, const uint32_t *other)
{
    const struct gpu_devices *gpus = tuner->exec->gpus;
    return gpu_devices_reaches(gpus, pair[0], pair[1]) == gpu_devices_reaches(gpus, other[0], other[1]) &&
           gpu_devices_reaches(gpus, pair[1], pair[0]) == gpu_devices_reaches(gpus, other[1], other[0]);
}

/* What was measured of the pair, or of one like it. */
static const struct gpu_tuning_set *set_of_pair(const struct tuner *tuner, const uint32_t *pair)
{
    const struct gpu_tuning_set *set = gpu_tuning_find(tuner->table, pair, 2);
    for (uint32_t i = 0; i < gpu_tuning_count(tuner->table) && set == NULL; i++) {
        const struct gpu_tuning_set *other = gpu_tuning_at(tuner->table, i);
        set = other->gpu_count == 2 && reach_alike(tuner, pair, other->gpus) ? other : NULL;
    }
    return set;
}

/* Whether a pair like this one waits to be measured. */
static bool is_wanted(const struct tuner *tuner, const uint32_t *pair)
{
    for (uint32_t i = 0; i < tuner->wanted_count; i++) {
        if (tuner->wanted[i].count == 2 && reach_alike(tuner, pair, tuner->wanted[i].list)) {
            return true;
        }
    }
    return false;
}

bool tuner_prefers_nccl_for_message(struct tuner *tuner, uint32_t from_gpu, uint32_t to_gpu, uint64_t bytes,
                                    bool otherwise, uint64_t now_ns)
{
    uint32_t pair[2] = {from_gpu < to_gpu ? from_gpu : to_gpu, from_gpu < to_gpu ? to_gpu : from_gpu};
    const struct gpu_tuning_set *set = set_of_pair(tuner, pair);
    if (set == NULL) {
        if (!is_wanted(tuner, pair)) {
            want(tuner, pair, 2, now_ns);
        }
        return otherwise;
    }
    return gpu_tuning_prefers_nccl(set, OP_KIND_BROADCAST, bytes, otherwise);
}

/* --- One sample --- */

static void fail(struct tuner *tuner, const struct error *why)
{
    if (!tuner->failed) {
        tuner->failed = true;
        tuner->why = *why;
    }
}

/* Of the tuner's communicator: the net stage, which it does not use, or a GPU failed. */
static void comm_failed(void *context, const struct error *cause, uint64_t now_ns)
{
    (void)now_ns;
    fail(context, cause);
}

static uint32_t engine_of_sample(const struct tuner *tuner)
{
    return tuner->samples[BY_NCCL] <= tuner->samples[WITHOUT_NCCL] ? BY_NCCL : WITHOUT_NCCL;
}

static void sample_done(void *context, const struct error *result, uint64_t now_ns)
{
    struct tuner *tuner = context;
    struct error error;
    uint32_t engine = engine_of_sample(tuner);
    uint64_t ns = clock_of(tuner, now_ns) - tuner->sample_ns;
    tuner->is_running = false;
    if (result->status != STATUS_OK) {
        fail(tuner, result);
        return;
    }
    if ((tuner->comm->last_engine == GPU_ENGINE_NCCL) != (engine == BY_NCCL)) {
        (void)error_set(&error, STATUS_UNSUPPORTED, "NCCL does not serve");
        fail(tuner, &error);
        return;
    }
    tuner->spent_ns[engine] += ns;
    if (tuner->samples[engine]++ > 0 && (tuner->best_ns[engine] == 0 || ns < tuner->best_ns[engine])) {
        tuner->best_ns[engine] = ns > 0 ? ns : 1;
    }
}

/* Gives a rank the buffers of the present kind. Those that it does not have are null. */
static void set_buffers(const struct tuner *tuner, uint32_t index, uint64_t block_bytes, uint64_t bytes,
                        struct exec_rank *rank)
{
    unsigned char *at = gpu_scratch_at(tuner->scratch, index);
    enum op_kind kind = kinds[tuner->kind];
    bool root = index == 0;
    bool short_input = op_kind_has_blocks(kind) && !op_kind_has_input_blocks(kind);
    bool short_output = op_kind_has_blocks(kind) && !op_kind_has_output_blocks(kind);
    *rank = (struct exec_rank){.on_gpu = true, .gpu = tuner->set.gpus[index], .factor = 1.0};
    if (op_kind_reads(kind, root)) {
        rank->input = at;
        rank->input_bytes = short_input ? block_bytes : bytes;
    }
    if (op_kind_writes(kind, root)) {
        rank->output = at + gpu_scratch_bytes(tuner->scratch) / 2;
        rank->output_bytes = short_output ? block_bytes : bytes;
    }
}

static void begin_sample(struct tuner *tuner, uint64_t now_ns)
{
    struct exec_rank ranks[GPU_DEVICES_MAX];
    struct error error;
    uint32_t count = tuner->set.gpu_count;
    enum op_kind kind = kinds[tuner->kind];
    uint64_t block = sizes[tuner->size] / sizeof(float) / count;
    uint64_t elements = op_kind_has_blocks(kind) ? block : block * count;
    for (uint32_t i = 0; i < count; i++) {
        set_buffers(tuner, i, block * sizeof(float), block * count * sizeof(float), &ranks[i]);
    }
    struct exec_call call = {.terms = {.kind = kind,
                                       .dtype = DTYPE_F32,
                                       .reduce = REDUCE_SUM,
                                       .bucket_ops = 1,
                                       .count_elements = elements},
                             .seq = ++tuner->seq,
                             .rank_count = count,
                             .ranks = ranks,
                             .engine = engine_of_sample(tuner) == BY_NCCL ? EXEC_GPU_NCCL : EXEC_GPU_KERNELS,
                             .done = sample_done,
                             .context = tuner};
    tuner->sample_ns = clock_of(tuner, now_ns);
    tuner->is_running = exec_submit(tuner->comm, &call, &error) == STATUS_OK;
    if (!tuner->is_running) {
        fail(tuner, &error);
    }
}

/* --- Cells: one kind at one size --- */

static bool cell_is_done(const struct tuner *tuner)
{
    for (uint32_t engine = 0; engine < ENGINES; engine++) {
        uint32_t samples = tuner->samples[engine];
        if (samples < 2 || (samples < TUNER_SAMPLES_MAX && tuner->spent_ns[engine] < TUNER_CELL_NS)) {
            return false;
        }
    }
    return true;
}

static void begin_cell(struct tuner *tuner, uint32_t kind, uint32_t size)
{
    tuner->kind = kind;
    tuner->size = size;
    for (uint32_t engine = 0; engine < ENGINES; engine++) {
        tuner->samples[engine] = 0;
        tuner->best_ns[engine] = tuner->spent_ns[engine] = 0;
    }
}

/* Whether the next size of the kind fits into the memory, and does not take too long. */
static bool next_size_serves(const struct tuner *tuner)
{
    uint32_t next = tuner->size + 1;
    if (next == SIZE_COUNT || sizes[next] > gpu_scratch_bytes(tuner->scratch) / 2) {
        return false;
    }
    uint64_t times = sizes[next] / sizes[tuner->size];
    return tuner->best_ns[BY_NCCL] * times < TUNER_SLOW_NS &&
           tuner->best_ns[WITHOUT_NCCL] * times < TUNER_SLOW_NS;
}

/* Returns whether there is a further cell. */
static bool end_cell(struct tuner *tuner)
{
    tuner->set.rows[tuner->set.row_count++] =
        (struct gpu_tuning_row){.kind = kinds[tuner->kind],
                                .bytes = sizes[tuner->size],
                                .nccl_ns = tuner->best_ns[BY_NCCL],
                                .without_ns = tuner->best_ns[WITHOUT_NCCL]};
    if (next_size_serves(tuner)) {
        begin_cell(tuner, tuner->kind, tuner->size + 1);
    } else {
        begin_cell(tuner, tuner->kind + 1, 0);
    }
    return tuner->kind < KIND_COUNT;
}

/* --- A measurement --- */

static enum status make_comm(struct tuner *tuner, struct error *error)
{
    uint32_t nodes[GPU_DEVICES_MAX] = {0}, peer = 0;
    const char *name = "this node";
    const struct exec_comm_handler handler = {.context = tuner, .failed = comm_failed};
    struct comm_map facts = {.ranks = {.size = tuner->set.gpu_count, .node_count = 1},
                             .owner_uid = UINT32_MAX,
                             .node_of_rank = nodes,
                             .peers = &peer,
                             .node_names = &name,
                             .slice_bytes = EXEC_SLICE_BYTES_DEFAULT,
                             .name = "(tuning)",
                             .network = coll_network_default};
    struct comm_map *map = NULL;
    enum status status = random_secure(&facts.comm_id, sizeof facts.comm_id, error);
    if (status == STATUS_OK) {
        status = comm_map_new(&facts, &map, error);
    }
    if (status == STATUS_OK) {
        status = exec_comm_new(tuner->exec, map, &handler, &tuner->comm, error);
    }
    comm_map_release(map);
    return status;
}

static void begin(struct tuner *tuner, uint32_t index, uint64_t now_ns)
{
    const struct wanted *wanted = &tuner->wanted[index];
    struct error error;
    tuner->at = index;
    tuner->failed = false;
    tuner->began_ns = now_ns;
    tuner->set = (struct gpu_tuning_set){.gpu_count = wanted->count};
    memcpy(tuner->set.gpus, wanted->list, wanted->count * sizeof wanted->list[0]);
    begin_cell(tuner, 0, 0);
    enum status status = gpu_scratch_new(tuner->exec->gpus, wanted->list, wanted->count, TUNER_MOST_BYTES,
                                         TUNER_LEAST_BYTES, &tuner->scratch, &error);
    if (status == STATUS_OK) {
        status = make_comm(tuner, &error);
    }
    tuner->state = TUNER_ALLOCATES;
    if (status != STATUS_OK) {
        fail(tuner, &error);
        tuner->state = TUNER_LEAVES;
    }
}

static void log_result(const struct tuner *tuner, uint64_t now_ns)
{
    char gpus[4 * GPU_DEVICES_MAX + 1] = "";
    uint32_t by_nccl = 0;
    size_t at = 0;
    for (uint32_t i = 0; i < tuner->set.gpu_count && at < sizeof gpus; i++) {
        at += (size_t)snprintf(gpus + at, sizeof gpus - at, "%s%u", i > 0 ? ", " : "", tuner->set.gpus[i]);
    }
    if (tuner->failed) {
        log_warning("GPUs %s: NCCL was not measured: %s; commd tries again in %llu s", gpus, tuner->why.text,
                    tuner->wanted[tuner->at].pause_ns / TIME_S);
        return;
    }
    for (uint32_t i = 0; i < tuner->set.row_count; i++) {
        by_nccl += tuner->set.rows[i].nccl_ns < tuner->set.rows[i].without_ns;
    }
    log_info("GPUs %s: measured in %.1f s: NCCL is the faster way in %u of %u cases "
             "(commctl gpus --tuning)",
             gpus, (double)(now_ns - tuner->began_ns) / 1e9, by_nccl, tuner->set.row_count);
}

/* Nobody needs NCCL's communicator, which takes hundreds of MB of each GPU, if it is never faster.
 */
static void discard_group(const struct tuner *tuner)
{
    bool is_needed = false;
    for (uint32_t i = 0; i < tuner->set.row_count; i++) {
        is_needed |= tuner->set.rows[i].nccl_ns < tuner->set.rows[i].without_ns;
    }
    if (tuner->comm->group != NULL && !is_needed) {
        gpu_group_discard(tuner->comm->group);
    }
}

static void end(struct tuner *tuner, uint64_t now_ns)
{
    struct wanted *wanted = &tuner->wanted[tuner->at];
    log_result(tuner, now_ns);
    if (tuner->comm != NULL) {
        discard_group(tuner);
        exec_comm_free(tuner->comm);
        tuner->comm = NULL;
    }
    if (tuner->failed) {
        wanted->from_ns = time_after(now_ns, wanted->pause_ns);
        wanted->pause_ns =
            2 * wanted->pause_ns < TUNER_RETRY_MAX_NS ? 2 * wanted->pause_ns : TUNER_RETRY_MAX_NS;
    } else {
        gpu_tuning_put(tuner->table, &tuner->set);
        *wanted = tuner->wanted[--tuner->wanted_count];
    }
    if (tuner->scratch != NULL) {
        gpu_scratch_end(tuner->scratch);
    }
    tuner->state = TUNER_FREES;
}

/* --- Steps --- */

/* Whether no operation runs but the tuner's own. */
static bool is_idle(const struct tuner *tuner)
{
    for (const struct exec_comm *comm = tuner->exec->comms; comm != NULL; comm = comm->hh.next) {
        if (comm != tuner->comm && !exec_comm_idle(comm)) {
            return false;
        }
    }
    return true;
}

/* Begins the next measurement that is due, if any. */
static void step_rests(struct tuner *tuner, uint64_t now_ns)
{
    uint64_t next_ns = TIME_NEVER;
    for (uint32_t i = 0; i < tuner->wanted_count && tuner->state == TUNER_RESTS; i++) {
        if (tuner->wanted[i].from_ns > now_ns) {
            next_ns = time_min(next_ns, tuner->wanted[i].from_ns);
        } else if (is_idle(tuner)) {
            begin(tuner, i, now_ns);
        } else {
            next_ns = now_ns + TUNER_LOOK_NS;
        }
    }
    tuner->deadline_ns = tuner->state == TUNER_RESTS ? next_ns : now_ns + TUNER_LOOK_NS;
}

static void step_allocates(struct tuner *tuner, uint64_t now_ns)
{
    struct error error;
    switch (gpu_scratch_poll(tuner->scratch, &error)) {
    case GPU_SCRATCH_READY:
        tuner->state = TUNER_MEASURES;
        break;
    case GPU_SCRATCH_FAILED:
        fail(tuner, &error);
        tuner->state = TUNER_LEAVES;
        break;
    case GPU_SCRATCH_WAITS:
    case GPU_SCRATCH_ENDED:
        break;
    }
    tuner->deadline_ns = now_ns + TUNER_LOOK_NS;
}

static void step_measures(struct tuner *tuner, uint64_t now_ns)
{
    if (tuner->failed || (!tuner->is_running && cell_is_done(tuner) && !end_cell(tuner))) {
        tuner->state = TUNER_LEAVES;
        return;
    }
    if (!tuner->is_running && !is_idle(tuner)) {
        tuner->deadline_ns = now_ns + TUNER_LOOK_NS;
        return;
    }
    if (!tuner->is_running) {
        begin_sample(tuner, now_ns);
    } else if (now_ns > tuner->sample_ns + TUNER_SAMPLE_MAX_NS) {
        struct error error;
        (void)error_set(&error, STATUS_TIMED_OUT, "an operation does not end");
        fail(tuner, &error);
    }
    tuner->deadline_ns = tuner->failed ? now_ns : tuner->sample_ns + TUNER_SAMPLE_MAX_NS + 1;
}

static void step_leaves(struct tuner *tuner, uint64_t now_ns)
{
    tuner->deadline_ns = now_ns + TUNER_LOOK_NS;
    if (tuner->failed && tuner->comm != NULL) {
        exec_comm_abort(tuner->comm, &tuner->why);
    }
    if (tuner->comm == NULL || exec_comm_idle(tuner->comm)) {
        end(tuner, now_ns);
    }
}

static void step_frees(struct tuner *tuner, uint64_t now_ns)
{
    if (tuner->scratch != NULL && gpu_scratch_poll(tuner->scratch, NULL) != GPU_SCRATCH_ENDED) {
        tuner->deadline_ns = now_ns + TUNER_LOOK_NS;
        return;
    }
    gpu_scratch_free(tuner->scratch);
    tuner->scratch = NULL;
    tuner->state = TUNER_RESTS;
    tuner->deadline_ns = tuner->wanted_count > 0 ? now_ns : TIME_NEVER;
}

void tuner_step(struct tuner *tuner, uint64_t now_ns)
{
    if (tuner->state == TUNER_MEASURES) { /* also between deadlines: a sample may be over */
        step_measures(tuner, now_ns);
    }
    if (now_ns < tuner->deadline_ns && tuner->state != TUNER_LEAVES) {
        return;
    }
    switch (tuner->state) {
    case TUNER_RESTS:
        step_rests(tuner, now_ns);
        break;
    case TUNER_ALLOCATES:
        step_allocates(tuner, now_ns);
        break;
    case TUNER_MEASURES:
        break;
    case TUNER_LEAVES:
        step_leaves(tuner, now_ns);
        break;
    case TUNER_FREES:
        step_frees(tuner, now_ns);
        break;
    }
}

uint64_t tuner_deadline_ns(const struct tuner *tuner)
{
    return tuner->deadline_ns;
}

/* --- The end --- */

/* Waits until no GPU uses the memory of the operation under way. Returns false if that takes too long. */
static bool await_end(struct tuner *tuner)
{
    struct error cause;
    (void)error_set(&cause, STATUS_SHUTTING_DOWN, "commd is shutting down");
    exec_comm_abort(tuner->comm, &cause);
    for (int left_ms = TUNER_END_MS; !exec_comm_idle(tuner->comm) && left_ms > 0; left_ms--) {
        (void)exec_comm_step(tuner->comm, clock_of(tuner, tuner->exec->now_ns));
        if (!exec_comm_idle(tuner->comm)) {
            (void)nanosleep(&(struct timespec){.tv_nsec = (long)TIME_MS}, NULL); /* stands for the loop */
        }
    }
    return exec_comm_idle(tuner->comm);
}

void tuner_free(struct tuner *tuner)
{
    static struct tuner *left; /* what a GPU still uses stays reachable */
    if (tuner == NULL) {
        return;
    }
    if (tuner->comm != NULL && !await_end(tuner)) {
        log_warning("a measurement on GPUs does not end; commd ends without waiting any longer");
        left = tuner;
        return;
    }
    exec_comm_free(tuner->comm);
    gpu_scratch_free(tuner->scratch);
    free(tuner);
    (void)left;
}
