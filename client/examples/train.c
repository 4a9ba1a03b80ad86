/*
 * Trains a small neural character model, data-parallel: every rank computes the gradient of its share of each
 * batch, commd sums the gradients, every rank takes the same step. At the end it checks that the parameters
 * have the same bits on all ranks. Rank 0 also checks that a single process, with the whole batches, gets the
 * same loss.
 *
 *   train [--name NAME] [--rank R --size N] [--text FILE] [--steps N] [--no-check] [--bucketed |
 * --compressed=KIND]
 *
 * --bucketed sums the layers' gradients one by one, in a group that runs as one. --compressed sends them as
 * bf16, f8 or top_k, with error feedback: the loss then is compared with that of uncompressed training within
 * 5 %.
 */
#include <commclient.h>

#include <getopt.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SYMBOLS = 96, CONTEXT = 4, EMBEDDING = 12, HIDDEN = 64, BATCH = 256, INPUTS = CONTEXT * EMBEDDING };
#define LEARNING_RATE 0.5
#define TEXT_MAX_BYTES (16u << 20)

struct model {
    double embedding[SYMBOLS][EMBEDDING];
    double hidden[INPUTS][HIDDEN];
    double hidden_bias[HIDDEN];
    double output[HIDDEN][SYMBOLS];
    double output_bias[SYMBOLS];
};
#define PARAMETERS (sizeof(struct model) / sizeof(double))

struct arguments {
    const char *name;
    const char *text;
    unsigned long rank, size, steps;
    bool check;
    bool bucketed;
    enum comm_compression compression;
};

/* What is summed over the ranks each step: the gradient and, last, the loss. */
struct gradient {
    struct model model;
    double loss;
};

struct text {
    unsigned char *symbols;
    size_t size;
};

static void die(const char *what, comm_result_t result)
{
    fprintf(stderr, "train: %s: %s: %s\n", what, comm_result_text(result), comm_last_error());
    exit(EXIT_FAILURE);
}

static uint64_t mix(uint64_t value)
{
    value ^= value >> 30;
    value *= 0xbf58476d1ce4e5b9ull;
    value ^= value >> 27;
    value *= 0x94d049bb133111ebull;
    return value ^ (value >> 31);
}

static struct text read_text(const char *path)
{
    struct text text = {malloc(TEXT_MAX_BYTES), 0};
    FILE *file = fopen(path, "rb");
    if (file == NULL || text.symbols == NULL) {
        perror(path);
        exit(EXIT_FAILURE);
    }
    text.size = fread(text.symbols, 1, TEXT_MAX_BYTES, file);
    fclose(file);
    for (size_t i = 0; i < text.size; i++) { /* printable ASCII, everything else one symbol */
        unsigned char byte = text.symbols[i];
        text.symbols[i] = byte >= ' ' && byte < 127 ? (unsigned char)(byte - ' ') : SYMBOLS - 1;
    }
    if (text.size <= CONTEXT + 1) {
        fprintf(stderr, "train: %s: too short to learn from\n", path);
        exit(EXIT_FAILURE);
    }
    return text;
}

static void initialise(struct model *model)
{
    double *values = (double *)model;
    for (size_t i = 0; i < PARAMETERS; i++) {
        values[i] = ((double)(mix(i + 1) >> 11) * 0x1p-53 - 0.5) * 0.3;
    }
}

/* Adds the gradient and the loss of one sample: the CONTEXT symbols at `at` predict the next. */
static void learn_sample(const struct model *model, const unsigned char *at, struct gradient *sum)
{
    double inputs[INPUTS], hidden[HIDDEN], output[SYMBOLS], hidden_error[HIDDEN] = {0};
    for (size_t c = 0; c < CONTEXT; c++) {
        memcpy(&inputs[c * EMBEDDING], model->embedding[at[c]], sizeof model->embedding[0]);
    }
    memcpy(hidden, model->hidden_bias, sizeof hidden);
    for (int i = 0; i < INPUTS; i++) {
        for (int h = 0; h < HIDDEN; h++) {
            hidden[h] += inputs[i] * model->hidden[i][h];
        }
    }
    memcpy(output, model->output_bias, sizeof output);
    for (int h = 0; h < HIDDEN; h++) {
        hidden[h] = tanh(hidden[h]);
        for (int o = 0; o < SYMBOLS; o++) {
            output[o] += hidden[h] * model->output[h][o];
        }
    }
    double largest = output[0], total = 0;
    for (int o = 1; o < SYMBOLS; o++) {
        largest = output[o] > largest ? output[o] : largest;
    }
    for (int o = 0; o < SYMBOLS; o++) {
        output[o] = exp(output[o] - largest);
        total += output[o];
    }
    sum->loss -= log(output[at[CONTEXT]] / total);
    for (int o = 0; o < SYMBOLS; o++) { /* from here on, output holds its error */
        output[o] = output[o] / total - (o == at[CONTEXT] ? 1 : 0);
        sum->model.output_bias[o] += output[o];
    }
    for (int h = 0; h < HIDDEN; h++) {
        for (int o = 0; o < SYMBOLS; o++) {
            sum->model.output[h][o] += hidden[h] * output[o];
            hidden_error[h] += model->output[h][o] * output[o];
        }
        hidden_error[h] *= 1 - hidden[h] * hidden[h];
        sum->model.hidden_bias[h] += hidden_error[h];
    }
    for (int i = 0; i < INPUTS; i++) {
        double error = 0;
        for (int h = 0; h < HIDDEN; h++) {
            sum->model.hidden[i][h] += inputs[i] * hidden_error[h];
            error += model->hidden[i][h] * hidden_error[h];
        }
        sum->model.embedding[at[i / EMBEDDING]][i % EMBEDDING] += error;
    }
}

/* One rank's share of a batch; the samples of a step are the same however many ranks share them. */
static void learn_share(const struct model *model, const struct text *text, uint64_t step, uint32_t rank,
                        uint32_t size, struct gradient *sum)
{
    memset(sum, 0, sizeof *sum);
    for (uint64_t sample = rank; sample < BATCH; sample += size) {
        size_t at = mix(step * BATCH + sample + 77) % (text->size - CONTEXT);
        learn_sample(model, &text->symbols[at], sum);
    }
}

static void take_step(struct model *model, const struct gradient *sum)
{
    double *values = (double *)model;
    const double *gradient = (const double *)&sum->model;
    for (size_t i = 0; i < PARAMETERS; i++) {
        values[i] -= LEARNING_RATE / BATCH * gradient[i];
    }
}

static void show_progress(uint64_t step, uint64_t steps, double loss)
{
    bool terminal = isatty(STDOUT_FILENO);
    bool last = step + 1 == steps;
    if (!last && (step + 1) % (terminal ? 5 : steps / 10 + 1) != 0) {
        return;
    }
    int done = (int)(30 * (step + 1) / steps);
    printf("%sstep %4llu/%llu [%.*s%*s] loss %.4f%s", terminal ? "\r" : "", (unsigned long long)step + 1,
           (unsigned long long)steps, done, "##############################", 30 - done, "", loss,
           terminal && !last ? "" : "\n");
    fflush(stdout);
}

static comm_result_t add_layer(comm_t *comm, double *layer, size_t bytes)
{
    return comm_all_reduce(comm, layer, layer, bytes / sizeof(double), COMM_F64, COMM_SUM, NULL);
}

/* Layer by layer, as a backward pass would have them. */
static comm_result_t sum_bucketed(comm_t *comm, struct gradient *sum)
{
    struct model *model = &sum->model;
    comm_result_t result = comm_group_begin();
    result = result == COMM_OK ? add_layer(comm, model->output_bias, sizeof model->output_bias) : result;
    result = result == COMM_OK ? add_layer(comm, model->output[0], sizeof model->output) : result;
    result = result == COMM_OK ? add_layer(comm, model->hidden_bias, sizeof model->hidden_bias) : result;
    result = result == COMM_OK ? add_layer(comm, model->hidden[0], sizeof model->hidden) : result;
    result = result == COMM_OK ? add_layer(comm, model->embedding[0], sizeof model->embedding) : result;
    result = result == COMM_OK ? add_layer(comm, &sum->loss, sizeof sum->loss) : result;
    comm_result_t ended = comm_group_end();
    result = result == COMM_OK ? ended : result;
    return result == COMM_OK ? comm_sync(comm, 0) : result;
}

/* Reduces the gradient compressed, with error feedback, and the loss uncompressed. */
static comm_result_t sum_compressed(comm_t *comm, struct gradient *sum, enum comm_compression compression)
{
    static float values[PARAMETERS], residual[PARAMETERS];
    double *gradient = (double *)&sum->model;
    comm_call_options_t options = COMM_CALL_OPTIONS_INIT;
    options.compression = compression;
    options.top_k_permille = 100;
    options.residual = residual;
    for (size_t i = 0; i < PARAMETERS; i++) {
        values[i] = (float)gradient[i];
    }
    comm_result_t result = comm_all_reduce(comm, values, values, PARAMETERS, COMM_F32, COMM_SUM, &options);
    result = result == COMM_OK ? add_layer(comm, &sum->loss, sizeof sum->loss) : result;
    result = result == COMM_OK ? comm_sync(comm, 0) : result;
    for (size_t i = 0; i < PARAMETERS; i++) {
        gradient[i] = (double)values[i];
    }
    return result;
}

static comm_result_t sum_gradients(comm_t *comm, struct gradient *sum, const struct arguments *arguments)
{
    if (arguments->bucketed) {
        return sum_bucketed(comm, sum);
    }
    if (arguments->compression != COMM_COMPRESSION_NONE) {
        return sum_compressed(comm, sum, arguments->compression);
    }
    comm_result_t result =
        comm_all_reduce(comm, sum, sum, sizeof *sum / sizeof(double), COMM_F64, COMM_SUM, NULL);
    return result == COMM_OK ? comm_sync(comm, 0) : result;
}

static double train(comm_t *comm, struct model *model, struct gradient *sum, const struct text *text,
                    const struct arguments *arguments)
{
    double loss = 0;
    uint64_t steps = arguments->steps;
    for (uint64_t step = 0; step < steps; step++) {
        learn_share(model, text, step, comm_rank(comm), comm_size(comm), sum);
        comm_result_t result = sum_gradients(comm, sum, arguments);
        if (result != COMM_OK) {
            die("all-reduce", result);
        }
        take_step(model, sum);
        loss = sum->loss / BATCH;
        if (comm_rank(comm) == 0) {
            show_progress(step, steps, loss);
        }
    }
    return loss;
}

/* Whether all ranks hold the same bits: the least and the greatest hash over all ranks are equal. */
static bool same_on_all_ranks(comm_t *comm, const struct model *model)
{
    uint64_t hash = 0xcbf29ce484222325ull;
    const unsigned char *bytes = (const unsigned char *)model;
    for (size_t i = 0; i < sizeof *model; i++) {
        hash = (hash ^ bytes[i]) * 0x100000001b3ull;
    }
    uint64_t least = hash, greatest = hash;
    comm_result_t result = comm_all_reduce(comm, &least, &least, 1, COMM_U64, COMM_MIN, NULL);
    if (result == COMM_OK) {
        result = comm_all_reduce(comm, &greatest, &greatest, 1, COMM_U64, COMM_MAX, NULL);
    }
    if (result == COMM_OK) {
        result = comm_sync(comm, 0);
    }
    if (result != COMM_OK) {
        die("comparison", result);
    }
    if (comm_rank(comm) == 0) {
        printf("parameters on %u ranks: %s (hash %016llx)\n", comm_size(comm),
               least == greatest ? "bit-identical" : "DIFFERENT", (unsigned long long)hash);
    }
    return least == greatest;
}

static bool same_as_alone(const struct text *text, uint64_t steps, double loss, double bound)
{
    struct model *model = malloc(sizeof *model);
    struct gradient *sum = malloc(sizeof *sum);
    if (model == NULL || sum == NULL) {
        perror("train");
        exit(EXIT_FAILURE);
    }
    initialise(model);
    double alone = 0;
    for (uint64_t step = 0; step < steps; step++) {
        learn_share(model, text, step, 0, 1, sum);
        take_step(model, sum);
        alone = sum->loss / BATCH;
    }
    double difference = fabs(alone - loss) / fabs(alone);
    printf("loss %.9f, of one process alone %.9f: relative difference %.1e (%s %g)\n", loss, alone,
           difference, difference <= bound ? "within" : "BEYOND", bound);
    free(sum);
    free(model);
    return difference <= bound;
}

static bool parse_compression(const char *text, enum comm_compression *compression)
{
    static const char *const names[] = {"none", "bf16", "f8", "top_k"};
    for (int i = 1; i < 4; i++) {
        if (strcmp(text, names[i]) == 0) {
            *compression = (enum comm_compression)i;
            return true;
        }
    }
    return false;
}

static struct arguments parse(int argc, char **argv)
{
    static const struct option options[] = {{"name", required_argument, NULL, 'n'},
                                            {"rank", required_argument, NULL, 'r'},
                                            {"size", required_argument, NULL, 's'},
                                            {"text", required_argument, NULL, 't'},
                                            {"steps", required_argument, NULL, 'S'},
                                            {"no-check", no_argument, NULL, 'c'},
                                            {"bucketed", no_argument, NULL, 'b'},
                                            {"compressed", required_argument, NULL, 'C'},
                                            {NULL, 0, NULL, 0}};
    struct arguments arguments = {
        "train", "/usr/share/common-licenses/GPL-3", 0, 0, 400, true, false, COMM_COMPRESSION_NONE};
    for (int option; (option = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        char *end = NULL;
        switch (option) {
        case 'n':
            arguments.name = optarg;
            break;
        case 't':
            arguments.text = optarg;
            break;
        case 'r':
            arguments.rank = strtoul(optarg, &end, 10);
            break;
        case 's':
            arguments.size = strtoul(optarg, &end, 10);
            break;
        case 'S':
            arguments.steps = strtoul(optarg, &end, 10);
            break;
        case 'c':
            arguments.check = false;
            break;
        case 'b':
            arguments.bucketed = true;
            break;
        case 'C':
            end = parse_compression(optarg, &arguments.compression) ? NULL : (char *)"?";
            break;
        default:
            end = (char *)"?";
            break;
        }
        if (end != NULL && *end != '\0') {
            optind = argc + 1;
            break;
        }
    }
    bool outside = arguments.size > 0 && arguments.rank >= arguments.size;
    if (optind != argc || outside || arguments.steps == 0) {
        fprintf(stderr,
                "usage: train [--name NAME] [--rank R --size N] [--text FILE] [--steps N] [--no-check]\n"
                "             [--bucketed | --compressed=bf16|f8|top_k]\n");
        exit(2);
    }
    return arguments;
}

/* Without --size, the launcher has set rank and size. */
static comm_result_t join(comm_client_t *client, struct arguments *arguments, comm_t **comm)
{
    comm_env_options_t options = COMM_ENV_OPTIONS_INIT;
    options.name = arguments->name;
    comm_result_t result = arguments->size > 0
                               ? comm_init(client, arguments->name, (uint32_t)arguments->rank,
                                           (uint32_t)arguments->size, COMM_DEVICE_HOST, NULL, comm)
                               : comm_init_env(client, &options, comm);
    if (result == COMM_OK) {
        arguments->rank = comm_rank(*comm);
        arguments->size = comm_size(*comm);
    }
    return result;
}

int main(int argc, char **argv)
{
    struct arguments arguments = parse(argc, argv);
    struct text text = read_text(arguments.text);
    comm_client_t *client;
    comm_t *comm;
    void *memory;
    comm_result_t result = comm_client_open(NULL, &client);
    if (result != COMM_OK) {
        die("connection", result);
    }
    result = join(client, &arguments, &comm);
    if (result != COMM_OK) {
        die(arguments.name, result);
    }
    /* The gradient is in memory that commd reduces in place; the parameters are in ordinary memory. */
    result = comm_mem_alloc(client, sizeof(struct gradient), COMM_DEVICE_HOST, &memory);
    if (result != COMM_OK) {
        die("memory", result);
    }
    struct model *model = calloc(1, sizeof *model);
    if (model == NULL) {
        perror("train");
        return EXIT_FAILURE;
    }
    if (arguments.rank == 0) {
        initialise(model);
        printf("training on %s (%zu bytes), %u ranks, this one on node %s, %zu parameters\n", arguments.text,
               text.size, comm_size(comm), comm_node_of(comm, comm_rank(comm)), (size_t)PARAMETERS);
    }
    result = comm_broadcast(comm, model, PARAMETERS, COMM_F64, 0, NULL);
    if (result == COMM_OK) {
        result = comm_sync(comm, 0);
    }
    if (result != COMM_OK) {
        die("broadcast", result);
    }
    double loss = train(comm, model, memory, &text, &arguments);
    bool good = same_on_all_ranks(comm, model);
    if (arguments.rank == 0 && arguments.check) {
        double bound = arguments.compression == COMM_COMPRESSION_NONE ? 1e-5 : 0.05;
        good = same_as_alone(&text, arguments.steps, loss, bound) && good;
    }
    result = comm_barrier(comm, NULL);
    if (result != COMM_OK) {
        die("barrier", result);
    }
    comm_mem_free(client, memory);
    comm_destroy(comm);
    comm_client_close(client);
    free(model);
    free(text.symbols);
    return good ? EXIT_SUCCESS : EXIT_FAILURE;
}
