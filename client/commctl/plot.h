#ifndef CLIENT_COMMCTL_PLOT_H
#define CLIENT_COMMCTL_PLOT_H

#include <jansson.h>
#include <stdbool.h>

/*
 * Writes a plot as SVG: time over size, both logarithmic, a line for each algorithm, that of what is picked
 * drawn bold. rows: objects with name, size_bytes, predicted_ns and picked, those of one algorithm together
 * and by size. False when the file cannot be written (errno says why).
 */
bool plot_write(const char *path, const char *title, const json_t *rows);

#endif
