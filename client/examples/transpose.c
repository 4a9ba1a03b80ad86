/*
 * Transposes a matrix whose rows are spread over the ranks as evenly as possible. Afterwards the rows of the
 * transpose are spread in the same way. One all_to_all_v moves every element once.
 *
 *   transpose [--name NAME] [--rank R --size N]
 */
#include "client/examples/example.h"

enum { ROWS = 503, COLUMNS = 407 };

/* Divides `total` items into `parts`; returns the first item of `part`. */
static size_t part_begin(size_t total, uint32_t parts, uint32_t part)
{
    return total * part / parts;
}

static double element(size_t row, size_t column)
{
    return (double)row * 1000 + (double)column;
}

int main(int argc, char **argv)
{
    struct example example = example_begin(argc, argv, "transpose");
    uint32_t size = example.size;
    size_t first_row = part_begin(ROWS, size, example.rank);
    size_t rows = part_begin(ROWS, size, example.rank + 1) - first_row;
    size_t first_column = part_begin(COLUMNS, size, example.rank);
    size_t columns = part_begin(COLUMNS, size, example.rank + 1) - first_column;
    double *sent = example_allocate(rows * COLUMNS, sizeof *sent);
    double *received = example_allocate(columns * ROWS, sizeof *received);
    double *transposed = example_allocate(columns * ROWS, sizeof *transposed);
    size_t *send_counts = example_allocate(size, sizeof *send_counts);
    size_t *receive_counts = example_allocate(size, sizeof *receive_counts);
    /* Packs the elements for each rank together, already transposed. */
    size_t at = 0;
    for (uint32_t peer = 0; peer < size; peer++) {
        size_t begin = part_begin(COLUMNS, size, peer), end = part_begin(COLUMNS, size, peer + 1);
        send_counts[peer] = (end - begin) * rows;
        receive_counts[peer] = (part_begin(ROWS, size, peer + 1) - part_begin(ROWS, size, peer)) * columns;
        for (size_t column = begin; column < end; column++) {
            for (size_t row = 0; row < rows; row++) {
                sent[at++] = element(first_row + row, column);
            }
        }
    }
    example_check(comm_all_to_all_v(example.comm, sent, send_counts, NULL, received, receive_counts, NULL,
                                    COMM_F64, NULL),
                  "all_to_all_v");
    example_check(comm_sync(example.comm, 0), "all_to_all_v");
    at = 0;
    for (uint32_t peer = 0; peer < size; peer++) {
        size_t begin = part_begin(ROWS, size, peer), end = part_begin(ROWS, size, peer + 1);
        for (size_t column = 0; column < columns; column++) {
            for (size_t row = begin; row < end; row++) {
                transposed[column * ROWS + row] = received[at++];
            }
        }
    }
    int good = 1;
    for (size_t column = 0; column < columns; column++) {
        for (size_t row = 0; row < ROWS; row++) {
            good = good && transposed[column * ROWS + row] == element(row, first_column + column);
        }
    }
    free(sent);
    free(received);
    free(transposed);
    free(send_counts);
    free(receive_counts);
    return example_end(&example, good, "transposed matrix");
}
