#ifndef CLIENT_COMMCTL_PLOT_H
#define CLIENT_COMMCTL_PLOT_H

#include <jansson.h>
#include <stdbool.h>

/*
 * Writes a plot as SVG: time over size, both logarithmic, with a line for each algorithm. The line of the
 * chosen algorithm is bold. rows: objects with name, size_bytes, predicted_ns and picked, grouped by
 * algorithm and ordered by size. Returns false if the file cannot be written (errno says why).
 */
bool plot_write(const char *path, const char *title, const json_t *rows);

#endif
