#ifndef CLIENT_COMMCTL_TOP_H
#define CLIENT_COMMCTL_TOP_H

#include "client/commctl/commctl.h"

/*
 * commctl top: what it shows (top_table.c), how it draws that on a terminal (top_screen.c), and the verb
 * itself (top.c). One thread uses all of it.
 */

#define TOP_RATES_MAX 3

/* A rate is shown next to a total: the difference of two looks, for each second. */
struct top_rate {
    const char *total; /* the key in commd's answer; null: no more rates */
    const char *rate;  /* the key that top adds */
};

struct top_table {
    const char *name; /* "communicators"; --table takes it */
    const struct list *list;
    const struct column *columns;
    size_t column_count;
    const char *id; /* the key by which a row is recognised in the next look */
    struct top_rate rates[TOP_RATES_MAX + 1];
    size_t sort_column; /* at the start */
    bool descending;    /* at the start */
};

enum { TOP_COMMS, TOP_OPS, TOP_LINKS, TOP_PROCESSES, TOP_TABLES };
extern const struct top_table top_tables[TOP_TABLES];

/* One table, from look to look. */
struct top_rows {
    const struct top_table *table;
    json_t *rows;     /* of the last look; null before the first */
    json_t *totals;   /* of the last look: id -> {total: number} */
    double looked_s;  /* when that was */
    long long others; /* rows of other users, which are not shown */
    size_t sort_column;
    bool descending;
};

/* Takes the rows of one look at the time now_s: adds rates, sorts them. Takes over the reference to `rows`.
 */
void top_rows_take(struct top_rows *top, json_t *rows, double now_s);
/* Sorts the rows again, after a change of sort_column or descending. Equal rows keep their order. */
void top_rows_sort(struct top_rows *top);
void top_rows_free(struct top_rows *top);

/* All that one screen shows. */
struct top {
    json_t
        *status; /* with ops_per_s, sent_bytes_per_s, received_bytes_per_s; null: commd did not answer yet */
    struct top_rows tables[TOP_TABLES];
    uint64_t ops_completed; /* of the last look */
    double looked_s;        /* 0: there was none */
    char message[256];      /* why the last look failed; "" if it did not */
};

/* Asks commd for everything. If that fails, top->message says why, and the rows stay as they were. */
enum exit_code top_look(struct top *top, struct commctl *commctl, double now_s);

#define TOP_HEADER_LINES 3u
/* Writes line 0 to TOP_HEADER_LINES - 1 of the summary. */
void top_header(const struct top *top, const struct commctl *commctl, unsigned line, char *text, size_t size);

/* Shows top on the terminal until the user quits or a signal arrives. Returns false, and changes nothing, if
 * the terminal cannot be used so. *code gets the exit code. */
bool top_screen_run(struct top *top, struct commctl *commctl, unsigned table, double interval_s,
                    enum exit_code *code);

#endif
