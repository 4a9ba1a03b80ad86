#include "client/commctl/plot.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define WIDTH 860.0
#define HEIGHT 520.0
#define LEFT 80.0
#define RIGHT 190.0
#define TOP 50.0
#define BOTTOM 60.0

struct plot {
    FILE *file;
    double size_low, size_high; /* log2 */
    double time_low, time_high; /* log10 of ns */
};

static const char *const colors[] = {"#1b6ca8", "#c0392b", "#2e8b57", "#b8860b",
                                     "#7d3c98", "#34495e", "#d35400"};
#define COLOR_COUNT (sizeof colors / sizeof colors[0])

static double size_of(const json_t *row)
{
    return log2((double)json_integer_value(json_object_get(row, "size_bytes")) + 1e-9);
}

static double time_of(const json_t *row)
{
    double ns = (double)json_integer_value(json_object_get(row, "predicted_ns"));
    return log10(ns > 1 ? ns : 1);
}

static double x_of(const struct plot *plot, double size)
{
    double span = plot->size_high > plot->size_low ? plot->size_high - plot->size_low : 1;
    return LEFT + (size - plot->size_low) / span * (WIDTH - LEFT - RIGHT);
}

static double y_of(const struct plot *plot, double time)
{
    return HEIGHT - BOTTOM -
           (time - plot->time_low) / (plot->time_high - plot->time_low) * (HEIGHT - TOP - BOTTOM);
}

static void measure(struct plot *plot, const json_t *rows)
{
    size_t index;
    json_t *row;
    plot->size_low = plot->time_low = 1e9;
    plot->size_high = plot->time_high = -1e9;
    json_array_foreach(rows, index, row)
    {
        plot->size_low = fmin(plot->size_low, size_of(row));
        plot->size_high = fmax(plot->size_high, size_of(row));
        plot->time_low = fmin(plot->time_low, floor(time_of(row)));
        plot->time_high = fmax(plot->time_high, ceil(time_of(row) + 1e-9));
    }
    if (plot->time_high <= plot->time_low) {
        plot->time_high = plot->time_low + 1;
    }
}

static void draw_axes(const struct plot *plot)
{
    static const char *const sizes[] = {"", "Ki", "Mi", "Gi", "Ti"};
    static const char *const times[] = {"1 ns",  "10 ns",  "100 ns", "1 us", "10 us", "100 us", "1 ms",
                                        "10 ms", "100 ms", "1 s",    "10 s", "100 s", "1000 s"};
    for (int power = (int)ceil(plot->size_low); power <= (int)floor(plot->size_high); power++) {
        double x = x_of(plot, power);
        bool labelled = power % 4 == 0 && power >= 0 && power < 50;
        (void)fprintf(plot->file, "<line x1='%.1f' y1='%.1f' x2='%.1f' y2='%.1f' stroke='%s'/>\n", x, TOP, x,
                      HEIGHT - BOTTOM, labelled ? "#ccc" : "#eee");
        if (labelled) {
            (void)fprintf(plot->file, "<text x='%.1f' y='%.1f' text-anchor='middle'>%d %sB</text>\n", x,
                          HEIGHT - BOTTOM + 18, 1 << power % 10, sizes[power / 10]);
        }
    }
    for (int power = (int)plot->time_low; power <= (int)plot->time_high; power++) {
        double y = y_of(plot, power);
        (void)fprintf(plot->file, "<line x1='%.1f' y1='%.1f' x2='%.1f' y2='%.1f' stroke='#ccc'/>\n", LEFT, y,
                      WIDTH - RIGHT, y);
        if (power >= 0 && power < (int)(sizeof times / sizeof times[0])) {
            (void)fprintf(plot->file, "<text x='%.1f' y='%.1f' text-anchor='end'>%s</text>\n", LEFT - 8,
                          y + 4, times[power]);
        }
    }
}

static const char *name_of(const json_t *row)
{
    return json_string_value(json_object_get(row, "name"));
}

/* Draws the rows of one algorithm, from `first` on. Returns the index of the next algorithm's first row. */
static size_t draw_line(const struct plot *plot, const json_t *rows, size_t first, size_t number)
{
    const char *color = colors[number % COLOR_COUNT];
    const char *name = name_of(json_array_get(rows, first));
    size_t end = first;
    (void)fprintf(plot->file, "<polyline fill='none' stroke='%s' stroke-width='1.6' points='", color);
    for (; end < json_array_size(rows) && strcmp(name_of(json_array_get(rows, end)), name) == 0; end++) {
        const json_t *row = json_array_get(rows, end);
        (void)fprintf(plot->file, "%.1f,%.1f ", x_of(plot, size_of(row)), y_of(plot, time_of(row)));
    }
    (void)fprintf(plot->file, "'/>\n");
    for (size_t i = first; i < end; i++) {
        const json_t *row = json_array_get(rows, i);
        if (json_is_true(json_object_get(row, "picked"))) {
            (void)fprintf(plot->file, "<circle cx='%.1f' cy='%.1f' r='3.5' fill='%s'/>\n",
                          x_of(plot, size_of(row)), y_of(plot, time_of(row)), color);
        }
    }
    double y = TOP + 14 + 20 * (double)number;
    (void)fprintf(plot->file,
                  "<line x1='%.1f' y1='%.1f' x2='%.1f' y2='%.1f' stroke='%s' stroke-width='3'/>"
                  "<text x='%.1f' y='%.1f'>%s</text>\n",
                  WIDTH - RIGHT + 14, y - 4, WIDTH - RIGHT + 34, y - 4, color, WIDTH - RIGHT + 40, y, name);
    return end;
}

bool plot_write(const char *path, const char *title, const json_t *rows)
{
    struct plot plot = {.file = fopen(path, "w")};
    if (plot.file == NULL) {
        return false;
    }
    measure(&plot, rows);
    (void)fprintf(plot.file,
                  "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 %.0f %.0f' font-family='sans-serif' "
                  "font-size='12'>\n<rect width='100%%' height='100%%' fill='white'/>\n"
                  "<text x='%.1f' y='28' font-size='16'>%s</text>\n",
                  WIDTH, HEIGHT, LEFT, title);
    draw_axes(&plot);
    size_t number = 0;
    for (size_t next = 0; next < json_array_size(rows); number++) {
        next = draw_line(&plot, rows, next, number);
    }
    (void)fprintf(plot.file,
                  "<text x='%.1f' y='%.1f' fill='#555'>dots: what commd would pick</text>\n<text x='%.1f' "
                  "y='%.1f' text-anchor='middle'>size of the operation</text>\n</svg>\n",
                  WIDTH - RIGHT + 14, TOP + 24 + 20 * (double)number, (LEFT + WIDTH - RIGHT) / 2,
                  HEIGHT - 16);
    return fclose(plot.file) == 0;
}
