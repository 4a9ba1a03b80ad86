/*
 * One rank of a check of slices that ranks read from each other's processes (proto/cells.h).
 *
 *   slices_read NAME RANK SIZE HOW
 *
 * HOW is "first", "middle" or "last": in some operations, the kernel cannot read that page of what others
 * need of one rank's input, though the rank itself can. Or it is "mixes": in every second operation, a rank
 * works in place. Or it is "absent": a page of rank 0's input comes late, and the others must not wait for it
 * past their deadline. It checks every element, and prints how many operations it has checked. If something
 * is wrong, it prints that on standard error, and exits with 1.
 */
#include <commclient.h>

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "tests/system/cells_rank.h"

#define RANKS_MAX 8u
#define COUNTS 3u
#define COUNT_MAX 300000u /* of a block */
#define PIECE 1024u
#define WARM_UPS 3u
#define PLACES 3u
#define TIMEOUT_MS 20000u
#define PAGE_BYTES ((size_t)4096)
#define ABSENT_S 6
#define ABSENT_TIMEOUT_MS 1000u

/* The last ones have a count for each rank. */
enum kind {
    ALL_REDUCE,
    ALL_GATHER,
    REDUCE_SCATTER,
    ALL_TO_ALL,
    SCATTER,
    BROADCAST,
    GATHER,
    REDUCE,
    ALL_GATHER_V,
    REDUCE_SCATTER_V,
    ALL_TO_ALL_V,
    SCATTER_V,
    KINDS
};

static const size_t counts[COUNTS] = {16000, 60001, COUNT_MAX};
static uint32_t *input, *output, operations;
static unsigned char *hole;

/* The rank itself touches the page. Others try to read it meanwhile. */
static void mend(int number)
{
    struct timespec pause = {.tv_nsec = 2000000};
    (void)number;
    (void)nanosleep(&pause, NULL);
    if (hole == NULL || mprotect(hole, PAGE_BYTES, PROT_READ | PROT_WRITE) != 0) {
        _exit(EXIT_FAILURE);
    }
}

static uint32_t number_of(uint32_t of_rank, size_t index)
{
    return (uint32_t)(index + 1) * 2654435761u ^ (of_rank + 1) * 40503u ^ operations * 69069u;
}

static bool has_input_blocks(enum kind kind)
{
    return kind == REDUCE_SCATTER || kind == ALL_TO_ALL || kind == SCATTER || kind >= REDUCE_SCATTER_V;
}

static bool has_output_blocks(enum kind kind)
{
    return kind == ALL_GATHER || kind == ALL_TO_ALL || kind == GATHER || kind == ALL_GATHER_V ||
           kind == ALL_TO_ALL_V;
}

/* In the inputs of some kinds, the last rank's block comes first. */
static size_t input_block(enum kind kind, uint32_t of_rank)
{
    return kind == ALL_TO_ALL_V || kind == SCATTER_V ? size - 1 - of_rank : of_rank;
}

/* Writes what PIECE elements or fewer of one block of the rank's result must be. */
static void expect_piece(enum kind kind, size_t count, uint32_t block, size_t first, size_t piece_count,
                         uint32_t *piece)
{
    bool sums = !has_output_blocks(kind) && kind != BROADCAST && kind != SCATTER && kind != SCATTER_V;
    uint32_t end = sums ? size : block + 1;
    first += has_input_blocks(kind) ? input_block(kind, rank) * count : 0;
    memset(piece, 0, piece_count * sizeof *piece);
    for (uint32_t from = sums ? 0 : block; from < end; from++) {
        for (size_t i = 0; i < piece_count; i++) {
            piece[i] += number_of(from, first + i);
        }
    }
}

/* Ends the program if an element of the block is wrong. */
static void check_block(enum kind kind, size_t count, uint32_t block, const uint32_t *got)
{
    uint32_t piece[PIECE];
    for (size_t first = 0; first < count; first += PIECE) {
        size_t piece_count = count - first < PIECE ? count - first : PIECE;
        expect_piece(kind, count, block, first, piece_count, piece);
        for (size_t i = 0; i < piece_count; i++) {
            if (got[first + i] != piece[i]) {
                fprintf(stderr,
                        "rank %u, kind %d, %zu elements, operation %u: element %zu of block %u is %u\n", rank,
                        (int)kind, count, operations, first + i, block, got[first + i]);
                exit(EXIT_FAILURE);
            }
        }
    }
}

static comm_result_t submit(enum kind kind, const uint32_t *from, uint32_t *to, size_t count)
{
    size_t each[RANKS_MAX], places[RANKS_MAX];
    for (uint32_t of_rank = 0; of_rank < size; of_rank++) {
        each[of_rank] = count;
        places[of_rank] = input_block(kind, of_rank) * count;
    }
    switch (kind) {
    case ALL_GATHER_V:
        return comm_all_gather_v(comm, from, to, each, NULL, COMM_U32, NULL);
    case REDUCE_SCATTER_V:
        return comm_reduce_scatter_v(comm, from, to, each, COMM_U32, COMM_SUM, NULL);
    case ALL_TO_ALL_V:
        return comm_all_to_all_v(comm, from, each, places, to, each, NULL, COMM_U32, NULL);
    case SCATTER_V:
        return comm_scatter_v(comm, from, each, places, to, count, COMM_U32, 0, NULL);
    case ALL_REDUCE:
        return comm_all_reduce(comm, from, to, count, COMM_U32, COMM_SUM, NULL);
    case ALL_GATHER:
        return comm_all_gather(comm, from, to, count, COMM_U32, NULL);
    case REDUCE_SCATTER:
        return comm_reduce_scatter(comm, from, to, count, COMM_U32, COMM_SUM, NULL);
    case ALL_TO_ALL:
        return comm_all_to_all(comm, from, to, count, COMM_U32, NULL);
    case SCATTER:
        return comm_scatter(comm, from, to, count, COMM_U32, 0, NULL);
    case BROADCAST:
        return comm_broadcast(comm, rank == 0 ? (uint32_t *)(uintptr_t)from : to, count, COMM_U32, 0, NULL);
    case GATHER:
        return comm_gather(comm, from, to, count, COMM_U32, 0, NULL);
    case REDUCE:
        return comm_reduce(comm, from, to, count, COMM_U32, COMM_SUM, 0, NULL);
    case KINDS:
        break;
    }
    return COMM_INTERNAL;
}

/* in_place: the result lies where the input was, or its own part of it. */
static void run(enum kind kind, size_t count, bool in_place, size_t hole_at)
{
    size_t in_count = count * (has_input_blocks(kind) ? size : 1);
    bool has_result = (kind != GATHER && kind != REDUCE) || rank == 0;
    bool root_sends = kind == BROADCAST && rank == 0;
    memset(output, 0xa5, count * (has_output_blocks(kind) ? size : 1) * sizeof *output);
    for (size_t i = 0; i < in_count; i++) {
        input[i] = number_of(rank, i);
    }
    if (hole_at != SIZE_MAX) {
        hole = (unsigned char *)input + hole_at / PAGE_BYTES * PAGE_BYTES;
        must(mprotect(hole, PAGE_BYTES, PROT_NONE) == 0 ? COMM_OK : COMM_INTERNAL, "mprotect");
    }
    uint32_t *to = !in_place ? output : kind == REDUCE_SCATTER ? input + rank * count : input;
    must(submit(kind, input, to, count), "submission");
    must(comm_sync(comm, 0), "comm_sync");
    if (hole_at != SIZE_MAX) { /* this rank's input may not have been needed */
        must(mprotect(hole, PAGE_BYTES, PROT_READ | PROT_WRITE) == 0 ? COMM_OK : COMM_INTERNAL, "mprotect");
    }
    for (uint32_t block = 0; has_result && !root_sends && block < (has_output_blocks(kind) ? size : 1);
         block++) {
        check_block(kind, count, block, to + block * count);
    }
    operations++;
}

/* A page of the input that others read of this rank. */
static size_t hole_of(enum kind kind, size_t count, uint32_t place)
{
    uint32_t for_rank = rank == 0 ? 1 : 0; /* not the own block */
    size_t begin = has_input_blocks(kind) ? input_block(kind, for_rank) * count * sizeof *input : 0;
    size_t size_bytes = count * sizeof *input;
    return begin + (place == 0 ? 0 : place == 1 ? size_bytes / 2 : size_bytes - 1);
}

static void check_holes(char **argv, enum kind kind, size_t count, uint32_t place)
{
    char name[128];
    char *arguments[] = {argv[0], name, argv[2], argv[3], NULL};
    (void)snprintf(name, sizeof name, "%s-%d-%zu-%u", argv[1], (int)kind, count, place);
    join(arguments, TIMEOUT_MS);
    for (uint32_t i = 0; i < WARM_UPS; i++) {
        run(kind, count, false, SIZE_MAX);
    }
    for (uint32_t of_rank = size; of_rank-- > 0;) { /* from then on, that rank copies its data */
        run(kind, count, false, rank == of_rank ? hole_of(kind, count, place) : SIZE_MAX);
        run(kind, count, false, SIZE_MAX);
    }
    leave();
}

static void check_mixes(char **argv)
{
    static const enum kind kinds[] = {ALL_REDUCE, ALL_TO_ALL, REDUCE_SCATTER, ALL_TO_ALL_V};
    join(argv, TIMEOUT_MS);
    for (uint32_t i = 0; i < 16; i++) {
        for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
            run(kinds[k], counts[i % COUNTS], i % 2 == 1 && rank == i / 2 % size, SIZE_MAX);
        }
    }
    leave();
}

/* Provides the page after a while. */
static void *provide(void *argument)
{
    const int *faults = argument;
    struct timespec pause = {.tv_sec = ABSENT_S};
    struct uffdio_zeropage zero = {.range = {.start = (uintptr_t)hole, .len = PAGE_BYTES}};
    (void)nanosleep(&pause, NULL);
    must(ioctl(*faults, UFFDIO_ZEROPAGE, &zero) == 0 ? COMM_OK : COMM_INTERNAL, "UFFDIO_ZEROPAGE");
    return NULL;
}

/* Removes the page, which then comes late. */
static void remove_page(int *faults, pthread_t *provider)
{
    struct uffdio_api api = {.api = UFFD_API};
    struct uffdio_register range = {.range = {.start = (uintptr_t)hole, .len = PAGE_BYTES},
                                    .mode = UFFDIO_REGISTER_MODE_MISSING};
    *faults = (int)syscall(SYS_userfaultfd, O_CLOEXEC);
    bool works = *faults >= 0 && ioctl(*faults, UFFDIO_API, &api) == 0 &&
                 madvise(hole, PAGE_BYTES, MADV_DONTNEED) == 0 &&
                 ioctl(*faults, UFFDIO_REGISTER, &range) == 0 &&
                 pthread_create(provider, NULL, provide, faults) == 0;
    must(works ? COMM_OK : COMM_INTERNAL, "userfaultfd");
}

static void check_absent(char **argv)
{
    const size_t count = counts[1];
    struct timespec began, ended;
    pthread_t provider;
    int faults = -1;
    join(argv, ABSENT_TIMEOUT_MS);
    for (uint32_t i = 0; i < WARM_UPS; i++) {
        run(ALL_GATHER, count, false, SIZE_MAX);
    }
    hole = (unsigned char *)input + count / 2 * sizeof *input / PAGE_BYTES * PAGE_BYTES;
    if (rank == 0) {
        remove_page(&faults, &provider);
    }
    (void)clock_gettime(CLOCK_MONOTONIC, &began);
    comm_result_t result = submit(ALL_GATHER, input, output, count);
    result = result == COMM_OK ? comm_sync(comm, 0) : result;
    (void)clock_gettime(CLOCK_MONOTONIC, &ended);
    if (rank != 0 && (result != COMM_TIMED_OUT || ended.tv_sec - began.tv_sec >= ABSENT_S - 1)) {
        fprintf(stderr, "rank %u: %s after %d s\n", rank, comm_result_text(result),
                (int)(ended.tv_sec - began.tv_sec));
        exit(EXIT_FAILURE);
    }
    if (rank == 0) {
        (void)pthread_join(provider, NULL);
        (void)close(faults);
    }
    fprintf(stderr, "rank %u: %s\n", rank, comm_last_error());
    leave();
}

/* Returns the number of places if it is none. */
static uint32_t place_of(const char *how)
{
    static const char *const places[PLACES] = {"first", "middle", "last"};
    uint32_t place = 0;
    while (place < PLACES && strcmp(how, places[place]) != 0) {
        place++;
    }
    return place;
}

int main(int argc, char **argv)
{
    struct sigaction action = {.sa_handler = mend};
    bool mixes = argc == 5 && strcmp(argv[4], "mixes") == 0;
    bool absent = argc == 5 && strcmp(argv[4], "absent") == 0;
    uint32_t place = argc == 5 ? place_of(argv[4]) : PLACES;
    size_t ranks = argc == 5 ? strtoul(argv[3], NULL, 10) : 0;
    if ((place == PLACES && !mixes && !absent) || ranks > RANKS_MAX) {
        fprintf(stderr, "usage: slices_read NAME RANK SIZE first|middle|last|mixes|absent\n");
        return 2;
    }
    size_t bytes = COUNT_MAX * ranks * sizeof *input;
    input = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    output = malloc(bytes);
    if (input == MAP_FAILED || output == NULL || sigaction(SIGSEGV, &action, NULL) != 0) {
        fprintf(stderr, "no memory\n");
        return EXIT_FAILURE;
    }
    if (mixes) {
        check_mixes(argv);
    }
    if (absent) {
        check_absent(argv);
    }
    for (uint32_t i = 0; place < PLACES && i < KINDS * COUNTS; i++) {
        check_holes(argv, (enum kind)(i % KINDS), counts[i / KINDS], place);
    }
    printf("%u operations checked\n", operations);
    return 0;
}
