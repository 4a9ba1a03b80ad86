#include <ncurses.h>
#include <signal.h>
#include <string.h>
#include <time.h>

#include "client/commctl/top.h"

/* Draws top on a terminal, and takes keys. Only this file uses ncurses. */

#define LINE_MAX_BYTES 512
#define TABS_LINE ((int)TOP_HEADER_LINES + 1)
#define TITLES_LINE (TABS_LINE + 1)
#define FIRST_ROW (TITLES_LINE + 1)
#define COLUMN_GAP 2
#define ROWS_MEASURED_MAX 1000u /* rows that decide how wide columns are */
#define INTERVAL_MIN_S 0.1
#define INTERVAL_MAX_S 60.0

static volatile sig_atomic_t signal_number;

static void note_signal(int number)
{
    signal_number = number;
}

struct screen {
    struct top *top;
    struct commctl *commctl;
    unsigned table;
    double interval_s;
    size_t first_row; /* of those that are shown */
    bool paused;
    bool quit;
};

static struct top_rows *screen_rows(const struct screen *screen)
{
    return &screen->top->tables[screen->table];
}

/* Names and programs come from other people: nothing but printable ASCII reaches the terminal. Cut at the
 * right edge. */
static void put_text(int line, int column, const char *text)
{
    int width = COLS - column;
    char printable[LINE_MAX_BYTES];
    size_t length = 0;
    for (; text[length] != '\0' && length + 1 < sizeof printable && (int)length < width; length++) {
        printable[length] = text[length] >= ' ' && text[length] <= '~' ? text[length] : '?';
    }
    printable[length] = '\0';
    if (width > 0) {
        mvaddstr(line, column, printable);
    }
}

static void draw_header(const struct screen *screen)
{
    char text[LINE_MAX_BYTES];
    char clock[16] = "";
    time_t now = time(NULL);
    struct tm parts;
    for (unsigned line = 0; line < TOP_HEADER_LINES; line++) {
        top_header(screen->top, screen->commctl, line, text, sizeof text);
        put_text((int)line, 0, text);
    }
    if (localtime_r(&now, &parts) != NULL && strftime(clock, sizeof clock, "%H:%M:%S", &parts) > 0) {
        put_text(0, COLS - (int)strlen(clock), clock);
    }
}

static void draw_tabs(const struct screen *screen)
{
    int column = 0;
    for (unsigned i = 0; i < TOP_TABLES; i++) {
        char tab[64];
        snprintf(tab, sizeof tab, "%u %s (%zu)", i + 1, top_tables[i].name,
                 json_array_size(screen->top->tables[i].rows));
        attrset(i == screen->table ? A_BOLD : A_DIM);
        put_text(TABS_LINE, column, tab);
        column += (int)strlen(tab) + 3;
    }
    attrset(A_NORMAL);
}

static int column_width(const struct top_rows *rows, const struct column *column)
{
    size_t width = strlen(column->title);
    size_t index;
    json_t *row;
    json_array_foreach(rows->rows, index, row)
    {
        char cell[LINE_MAX_BYTES];
        if (index >= ROWS_MEASURED_MAX) {
            break;
        }
        table_cell(row, column, cell, sizeof cell);
        width = strlen(cell) > width ? strlen(cell) : width;
    }
    return (int)width;
}

static bool is_text(enum column_format format)
{
    return format == COLUMN_TEXT || format == COLUMN_LIST;
}

/* Numbers are right-aligned, so that their sizes can be compared at a glance. */
static int cell_place(const struct column *column, int start, int width, const char *cell)
{
    return is_text(column->format) ? start : start + width - (int)strlen(cell);
}

static void draw_column(const struct screen *screen, size_t which, int start, int width)
{
    const struct top_rows *rows = screen_rows(screen);
    const struct column *column = &rows->table->columns[which];
    attrset(which == rows->sort_column ? A_REVERSE | A_BOLD : A_REVERSE);
    put_text(TITLES_LINE, cell_place(column, start, width, column->title), column->title);
    attrset(A_NORMAL);
    for (int line = FIRST_ROW; line < LINES - 1; line++) {
        const json_t *row = json_array_get(rows->rows, screen->first_row + (size_t)(line - FIRST_ROW));
        char cell[LINE_MAX_BYTES];
        if (row == NULL) {
            break;
        }
        table_cell(row, column, cell, sizeof cell);
        put_text(line, cell_place(column, start, width, cell), cell);
    }
}

static void draw_table(struct screen *screen)
{
    const struct top_rows *rows = screen_rows(screen);
    size_t count = json_array_size(rows->rows);
    int start = 0;
    screen->first_row = screen->first_row < count ? screen->first_row : 0;
    attrset(A_REVERSE);
    mvhline(TITLES_LINE, 0, ' ', COLS);
    attrset(A_NORMAL);
    for (size_t i = 0; i < rows->table->column_count && start < COLS; i++) {
        int width = column_width(rows, &rows->table->columns[i]);
        draw_column(screen, i, start, width);
        start += width + COLUMN_GAP;
    }
    if (count == 0 && rows->rows != NULL) {
        put_text(FIRST_ROW, 0, rows->others > 0 ? "none of yours" : "none");
    }
}

static void draw_last_line(const struct screen *screen)
{
    char text[LINE_MAX_BYTES];
    if (screen->top->message[0] != '\0') {
        attrset(A_BOLD);
        put_text(LINES - 1, 0, screen->top->message);
        attrset(A_NORMAL);
        return;
    }
    snprintf(text, sizeof text,
             "q quit  1-%d table  <> sort by  r reverse  arrows scroll  space %s  +- every %g s", TOP_TABLES,
             screen->paused ? "go on" : "pause", screen->interval_s);
    attrset(A_DIM);
    put_text(LINES - 1, 0, text);
    attrset(A_NORMAL);
}

static void draw(struct screen *screen)
{
    erase();
    draw_header(screen);
    draw_tabs(screen);
    draw_table(screen);
    draw_last_line(screen);
    refresh();
}

static void choose_table(struct screen *screen, unsigned table)
{
    screen->table = table % TOP_TABLES;
    screen->first_row = 0;
}

static void move_sort(const struct screen *screen, bool right)
{
    struct top_rows *rows = screen_rows(screen);
    size_t count = rows->table->column_count;
    rows->sort_column = (rows->sort_column + (right ? 1 : count - 1)) % count;
    /* Large numbers first, texts from A to Z. */
    rows->descending = !is_text(rows->table->columns[rows->sort_column].format);
    top_rows_sort(rows);
}

static void scroll_rows(struct screen *screen, long by)
{
    size_t count = json_array_size(screen_rows(screen)->rows);
    long first = (long)screen->first_row + by;
    long last = count > 0 ? (long)count - 1 : 0;
    screen->first_row = (size_t)(first < 0 ? 0 : first > last ? last : first);
}

static void change_interval(struct screen *screen, double factor)
{
    double interval_s = screen->interval_s * factor;
    screen->interval_s = interval_s < INTERVAL_MIN_S   ? INTERVAL_MIN_S
                         : interval_s > INTERVAL_MAX_S ? INTERVAL_MAX_S
                                                       : interval_s;
}

static void scroll_by_key(struct screen *screen, int key)
{
    long page = LINES - 1 - FIRST_ROW;
    long by = key == KEY_UP      ? -1
              : key == KEY_DOWN  ? 1
              : key == KEY_PPAGE ? -page
              : key == KEY_NPAGE ? page
              : key == KEY_HOME  ? INT16_MIN
                                 : 0;
    scroll_rows(screen, by);
}

static void take_key(struct screen *screen, int key)
{
    if (key >= '1' && key < '1' + TOP_TABLES) {
        choose_table(screen, (unsigned)(key - '1'));
    } else if (key == '\t') {
        choose_table(screen, screen->table + 1);
    } else if (key == '<' || key == KEY_LEFT) {
        move_sort(screen, false);
    } else if (key == '>' || key == KEY_RIGHT) {
        move_sort(screen, true);
    } else if (key == 'r') {
        screen_rows(screen)->descending = !screen_rows(screen)->descending;
        top_rows_sort(screen_rows(screen));
    } else if (key == ' ') {
        screen->paused = !screen->paused;
    } else if (key == '+' || key == '-') {
        change_interval(screen, key == '+' ? 2 : 0.5);
    } else if (key == 'q' || key == 'Q') {
        screen->quit = true;
    } else {
        scroll_by_key(screen, key);
    }
}

/* Takes keys until it is time for the next look. */
static void wait_for_keys(struct screen *screen)
{
    double until_s = now_s() + screen->interval_s;
    while (!screen->quit && signal_number == 0) {
        double left_s = until_s - now_s();
        if (left_s <= 0) {
            return;
        }
        timeout(left_s > 1 ? 1000 : (int)(left_s * 1000) + 1);
        int key = getch();
        if (key != ERR) {
            take_key(screen, key);
            draw(screen);
        }
    }
}

static void run(struct screen *screen)
{
    while (!screen->quit && signal_number == 0) {
        if (!screen->paused) {
            (void)top_look(screen->top, screen->commctl, now_s()); /* a failure is shown, and tried again */
        }
        draw(screen);
        wait_for_keys(screen);
    }
}

bool top_screen_run(struct top *top, struct commctl *commctl, unsigned table, double interval_s,
                    enum exit_code *code)
{
    struct screen screen = {.top = top, .commctl = commctl, .table = table, .interval_s = interval_s};
    static const int ending[] = {SIGINT, SIGTERM, SIGHUP};
    *code = top_look(top, commctl, now_s());
    if (*code != EXIT_CODE_OK) {
        fprintf(stderr, "%s\n", top->message);
        return true; /* there is nothing to show */
    }
    SCREEN *terminal = newterm(NULL, stdout, stdin); /* initscr would end the process */
    if (terminal == NULL) {
        return false;
    }
    for (size_t i = 0; i < sizeof ending / sizeof ending[0]; i++) {
        (void)sigaction(ending[i], &(struct sigaction){.sa_handler = note_signal}, NULL);
    }
    cbreak();
    noecho();
    keypad(stdscr, TRUE);
    curs_set(0);
    run(&screen);
    endwin();
    delscreen(terminal);
    /* Ctrl-C is a way to quit. */
    *code = signal_number == 0 || signal_number == SIGINT
                ? EXIT_CODE_OK
                : (enum exit_code)(EXIT_CODE_SIGNAL + signal_number);
    return true;
}
