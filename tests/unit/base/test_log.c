#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/base/log.h"
#include "daemon/base/log_writer.h"
#include "daemon/base/time.h"

struct capture {
    unsigned count;
    enum log_level level;
    char line[LOG_LINE_MAX_BYTES];
};

static void capture_line(void *context, enum log_level level, const char *line)
{
    struct capture *capture = context;
    capture->count++;
    capture->level = level;
    assert_true(strlen(line) < sizeof(capture->line));
    strcpy(capture->line, line);
    errno = EPIPE; /* a sink may change errno */
}

static int capture_start(void **state)
{
    static struct capture capture;
    memset(&capture, 0, sizeof(capture));
    log_set_sink(capture_line, &capture);
    *state = &capture;
    return 0;
}

static int capture_end(void **state)
{
    (void)state;
    log_set_sink(NULL, NULL);
    log_set_level(LOG_LEVEL_INFO);
    return 0;
}

static void test_levels_filter(void **state)
{
    struct capture *capture = *state;
    static const enum log_level levels[] = {LOG_LEVEL_ERROR, LOG_LEVEL_WARNING, LOG_LEVEL_INFO,
                                            LOG_LEVEL_DEBUG};
    for (size_t set = 0; set < 4; set++) {
        log_set_level(levels[set]);
        for (size_t used = 0; used < 4; used++) {
            capture->count = 0;
            log_line(levels[used], "line %zu", used);
            assert_int_equal(capture->count, used <= set);
            if (used <= set) {
                assert_int_equal(capture->level, levels[used]);
            }
        }
    }
    capture->count = 0;
    log_error("%d", 1);
    log_warning("%d", 2);
    log_info("%d", 3);
    log_debug("%d", 4);
    assert_int_equal(capture->count, 4);
    assert_string_equal(capture->line, "4");
}

static void test_level_texts(void **state)
{
    (void)state;
    static const char *const texts[] = {"error", "warning", "info", "debug"};
    for (size_t i = 0; i < 4; i++) {
        enum log_level level = LOG_LEVEL_DEBUG;
        assert_true(log_level_from_text(texts[i], &level));
        assert_int_equal(level, i);
    }
    enum log_level untouched = LOG_LEVEL_WARNING;
    assert_false(log_level_from_text("Error", &untouched));
    assert_false(log_level_from_text("", &untouched));
    assert_false(log_level_from_text("err", &untouched));
    assert_false(log_level_from_text("errors", &untouched));
    assert_false(log_level_from_text(NULL, &untouched));
    assert_int_equal(untouched, LOG_LEVEL_WARNING);
}

static void test_escapes(void **state)
{
    struct capture *capture = *state;
    static const struct {
        const char *in;
        const char *out;
    } cases[] = {
        {"plain ~ text", "plain ~ text"},
        {"a\nb", "a\\nb"},
        {"\n<3>forged", "\\n<3>forged"},
        {"a\r\nb\tc", "a\\x0d\\nb\\tc"},
        {"\x01\x1b[2J\x7f", "\\x01\\x1b[2J\\x7f"},
        {"\xc3\xa9 \xe2\x82\xac \xf0\x9f\x8c\x8d", "\xc3\xa9 \xe2\x82\xac \xf0\x9f\x8c\x8d"},
        {"\xc2\x9b"
         "31m",
         "\\xc2\\x9b31m"}, /* C1: control sequence introducer */
        {"\xc2\x80\xc2\x9f\xc2\xa0", "\\xc2\\x80\\xc2\\x9f\xc2\xa0"},
        {"\x80\xbf", "\\x80\\xbf"}, /* continuations without a lead */
        {"\xc3", "\\xc3"},          /* leads at the end */
        {"\xe2\x82", "\\xe2\\x82"},
        {"\xf0\x9f\x8c", "\\xf0\\x9f\\x8c"},
        {"\xc3x", "\\xc3x"},
        {"\xe2\x82x", "\\xe2\\x82x"},
        {"\xc0\x8a", "\\xc0\\x8a"}, /* overlong line feed */
        {"\xc1\xbf", "\\xc1\\xbf"},
        {"\xe0\x80\x8a", "\\xe0\\x80\\x8a"},
        {"\xf0\x80\x80\x8a", "\\xf0\\x80\\x80\\x8a"},
        {"\xed\xa0\x80", "\\xed\\xa0\\x80"}, /* surrogate */
        {"\xed\x9f\xbf", "\xed\x9f\xbf"},
        {"\xf4\x8f\xbf\xbf", "\xf4\x8f\xbf\xbf"},
        {"\xf4\x90\x80\x80", "\\xf4\\x90\\x80\\x80"}, /* beyond U+10FFFF */
        {"\xf5\x80\x80\x80\xff", "\\xf5\\x80\\x80\\x80\\xff"},
        {"", ""},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        log_info("%s", cases[i].in);
        assert_string_equal(capture->line, cases[i].out);
    }
    assert_int_equal(capture->count, sizeof(cases) / sizeof(cases[0]));
}

static void test_long_lines_are_cut(void **state)
{
    struct capture *capture = *state;
    char text[2 * LOG_LINE_MAX_BYTES];
    for (size_t length = LOG_LINE_MAX_BYTES - 8; length < LOG_LINE_MAX_BYTES + 8; length++) {
        for (size_t i = 0; i < length; i++) {
            text[i] = (char)('a' + i % 26);
        }
        text[length] = '\0';
        log_info("%s", text);
        size_t got = strlen(capture->line);
        if (length <= LOG_LINE_MAX_BYTES - 4) {
            assert_string_equal(capture->line, text);
        } else {
            assert_int_equal(got, LOG_LINE_MAX_BYTES - 1);
            assert_memory_equal(capture->line, text, got - 3);
            assert_string_equal(capture->line + got - 3, "...");
        }
    }
    /* Escapes are never cut in their middle: each byte here becomes four. */
    memset(text, 1, sizeof(text));
    text[sizeof(text) - 1] = '\0';
    log_info("xy%s", text);
    size_t got = strlen(capture->line);
    assert_true(got > LOG_LINE_MAX_BYTES - 8);
    assert_int_equal((got - 2 - 3) % 4, 0);
    assert_memory_equal(capture->line, "xy\\x01\\x01", 10);
    assert_string_equal(capture->line + got - 7, "\\x01...");
}

static void test_errno_is_kept(void **state)
{
    (void)state;
    errno = ENOTTY;
    log_info("something");
    assert_int_equal(errno, ENOTTY);
}

/* What two lines look like on standard error. A child process, whose standard error is a pipe, writes them.
 */
static void stderr_of_child(const char *journal_stream, bool matching, char *out, size_t size)
{
    int fds[2];
    assert_int_equal(pipe(fds), 0);
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct stat status;
        dup2(fds[1], STDERR_FILENO);
        fstat(STDERR_FILENO, &status);
        char own[64];
        snprintf(own, sizeof(own), "%ju:%ju", (uintmax_t)status.st_dev, (uintmax_t)status.st_ino);
        unsetenv("JOURNAL_STREAM");
        if (matching || journal_stream != NULL) {
            setenv("JOURNAL_STREAM", matching ? own : journal_stream, 1);
        }
        log_set_level(LOG_LEVEL_DEBUG);
        log_error("first");
        log_warning("second\n<0>third");
        log_info("fourth");
        log_debug("fifth");
        _exit(0);
    }
    close(fds[1]);
    size_t length = 0;
    ssize_t got;
    while ((got = read(fds[0], out + length, size - 1 - length)) > 0) {
        length += (size_t)got;
    }
    out[length] = '\0';
    close(fds[0]);
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

static void test_journal_lines_carry_priorities(void **state)
{
    (void)state;
    char text[1024];
    stderr_of_child(NULL, true, text, sizeof(text));
    assert_string_equal(text, "<3>first\n<4>second\\n<0>third\n<6>fourth\n<7>fifth\n");
}

static void check_plain_line(const char *line, const char *rest)
{
    unsigned year;
    unsigned month;
    unsigned day;
    unsigned hour;
    unsigned minute;
    unsigned second;
    unsigned millisecond;
    int used = -1;
    assert_int_equal(sscanf(line, "%4u-%2u-%2uT%2u:%2u:%2u.%3uZ %n", &year, &month, &day, &hour, &minute,
                            &second, &millisecond, &used),
                     7);
    assert_int_equal(used, 25);
    assert_in_range(year, 2020, 9999);
    assert_in_range(month, 1, 12);
    assert_in_range(day, 1, 31);
    assert_in_range(hour, 0, 23);
    assert_in_range(minute, 0, 59);
    assert_in_range(second, 0, 60);
    assert_string_equal(line + used, rest);
}

static void test_plain_lines_carry_time_and_level(void **state)
{
    (void)state;
    static const char *const streams[] = {NULL, "0:0"}; /* a journal to which standard error does not lead */
    static const char *const rests[] = {"error: first", "warning: second\\n<0>third", "info: fourth",
                                        "debug: fifth"};
    for (size_t s = 0; s < 2; s++) {
        char text[1024];
        stderr_of_child(streams[s], false, text, sizeof(text));
        char *position = NULL;
        size_t count = 0;
        for (char *line = strtok_r(text, "\n", &position); line != NULL;
             line = strtok_r(NULL, "\n", &position)) {
            assert_true(count < 4);
            check_plain_line(line, rests[count]);
            count++;
        }
        assert_int_equal(count, 4);
    }
}

struct writer {
    char letter;
};

enum { WRITER_LINES = 200, WRITER_COUNT = 4, WRITER_BYTES = 2000 };

static void *write_lines(void *context)
{
    struct writer *writer = context;
    char text[WRITER_BYTES + 1];
    memset(text, writer->letter, WRITER_BYTES);
    text[WRITER_BYTES] = '\0';
    for (int i = 0; i < WRITER_LINES; i++) {
        log_info("%s", text);
    }
    return NULL;
}

static void write_from_threads(int fd)
{
    dup2(fd, STDERR_FILENO);
    unsetenv("JOURNAL_STREAM");
    struct writer writers[WRITER_COUNT];
    pthread_t threads[WRITER_COUNT];
    for (int i = 0; i < WRITER_COUNT; i++) {
        writers[i].letter = (char)('a' + i);
        if (pthread_create(&threads[i], NULL, write_lines, &writers[i]) != 0) {
            _exit(2);
        }
    }
    for (int i = 0; i < WRITER_COUNT; i++) {
        pthread_join(threads[i], NULL);
    }
    _exit(0);
}

static void test_threads_do_not_mix_lines(void **state)
{
    (void)state;
    int fds[2];
    assert_int_equal(pipe(fds), 0);
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        write_from_threads(fds[1]);
    }
    close(fds[1]);
    FILE *lines = fdopen(fds[0], "r");
    assert_non_null(lines);
    char line[LOG_LINE_MAX_BYTES + 2];
    unsigned counts[WRITER_COUNT] = {0};
    while (fgets(line, sizeof(line), lines) != NULL) {
        const char *text = strstr(line, "info: ");
        assert_non_null(text);
        text += strlen("info: ");
        assert_int_equal(strlen(text), WRITER_BYTES + 1);
        char letter[2] = {text[0], '\0'};
        assert_int_equal(strspn(text, letter), WRITER_BYTES);
        assert_in_range(text[0], 'a', 'a' + WRITER_COUNT - 1);
        counts[text[0] - 'a']++;
    }
    fclose(lines);
    for (int i = 0; i < WRITER_COUNT; i++) {
        assert_int_equal(counts[i], WRITER_LINES);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

/* --- The thread that writes --- */

enum { PIPE_SMALL_BYTES = 4096, LOST_LINES = 8000, LOST_LINE_BYTES = 100, CHILD_LIMIT_S = 60 };

/* The child's standard error is the pipe. If a write blocks for ever, SIGALRM ends the child. */
static pid_t fork_logging(int fd, void (*run)(int control), int control)
{
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct error error;
        alarm(CHILD_LIMIT_S);
        dup2(fd, STDERR_FILENO);
        close(fd);
        unsetenv("JOURNAL_STREAM");
        signal(SIGPIPE, SIG_IGN);
        if (log_writer_start(&error) != STATUS_OK) {
            _exit(10);
        }
        run(control);
        _exit(0);
    }
    return child;
}

static void require(bool condition, int code)
{
    if (!condition) {
        _exit(code);
    }
}

/* Writes to `control` when everything is logged. Then waits until the other end has begun to read. */
static void log_more_than_fits(int control)
{
    char text[LOST_LINE_BYTES + 1];
    memset(text, 'x', LOST_LINE_BYTES);
    text[LOST_LINE_BYTES] = '\0';
    for (unsigned i = 0; i < LOST_LINES; i++) {
        log_info("%u %s", i, text);
    }
    uint64_t lost = log_lines_lost();
    require(lost > 0 && lost < LOST_LINES, 11);
    require(write(control, &lost, sizeof lost) == (ssize_t)sizeof lost, 12);
    char byte;
    require(read(control, &byte, 1) == 1, 13);
    log_info("after"); /* there may be no room yet: then this line is lost, too */
    log_writer_stop(1000 * CHILD_LIMIT_S);
    log_info("at last"); /* the thread has ended: written at once */
}

static void test_a_full_pipe_blocks_nobody_and_lost_lines_are_counted(void **state)
{
    (void)state;
    int fds[2], control[2];
    assert_int_equal(pipe(fds), 0);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, control), 0);
    assert_true(fcntl(fds[1], F_SETPIPE_SZ, PIPE_SMALL_BYTES) >= PIPE_SMALL_BYTES);
    pid_t child = fork_logging(fds[1], log_more_than_fits, control[1]);
    close(fds[1]);
    close(control[1]);
    uint64_t lost = 0;
    assert_int_equal(read(control[0], &lost, sizeof lost), sizeof lost);
    assert_int_equal(write(control[0], "r", 1), 1);
    FILE *lines = fdopen(fds[0], "r");
    char line[LOG_LINE_MAX_BYTES + 2];
    uint64_t seen = 0, reported = 0;
    bool last = false;
    while (fgets(line, sizeof line, lines) != NULL) {
        unsigned index;
        unsigned long long count;
        const char *text = strchr(line, ' ');
        assert_non_null(text);
        if (sscanf(text, " info: %u x", &index) == 1) {
            assert_int_equal(index, seen + reported); /* a report stands where lines are missing */
            seen++;
        } else if (sscanf(text, " warning: %llu log lines were lost", &count) == 1) {
            reported += count;
        }
        last = strstr(text, "at last") != NULL;
    }
    fclose(lines);
    close(control[0]);
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_true(last);
    assert_int_equal(seen + lost, LOST_LINES);
    assert_in_range(reported, lost, lost + 1);
}

static void stop_with_a_full_pipe(int control)
{
    (void)control;
    char text[LOST_LINE_BYTES + 1];
    memset(text, 'x', LOST_LINE_BYTES);
    text[LOST_LINE_BYTES] = '\0';
    for (unsigned i = 0; i < LOST_LINES; i++) {
        log_info("%s", text);
    }
    uint64_t before = log_lines_lost();
    log_writer_stop(50);
    log_info("nobody waits for this one");
    require(log_lines_lost() == before + 1, 14);
}

static void test_a_full_pipe_does_not_hold_up_the_end(void **state)
{
    (void)state;
    int fds[2];
    assert_int_equal(pipe(fds), 0);
    pid_t child = fork_logging(fds[1], stop_with_a_full_pipe, -1);
    close(fds[1]);
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    close(fds[0]);
}

static void log_to_nobody(int control)
{
    (void)control;
    for (int i = 0; i < 10; i++) {
        log_error("%d", i);
    }
    log_writer_stop(1000 * CHILD_LIMIT_S);
    require(log_lines_lost() == 10, 15);
}

static void test_a_reader_that_is_gone_ends_nobody(void **state)
{
    (void)state;
    int fds[2];
    assert_int_equal(pipe(fds), 0);
    close(fds[0]);
    pid_t child = fork_logging(fds[1], log_to_nobody, -1);
    close(fds[1]);
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

/* Writes to `control` when everything is logged. */
static void log_a_little(int control)
{
    fcntl(STDERR_FILENO, F_SETFL, O_NONBLOCK); /* as another process may do with a shared description */
    char text[LOST_LINE_BYTES + 1];
    memset(text, 'x', LOST_LINE_BYTES);
    text[LOST_LINE_BYTES] = '\0';
    for (unsigned i = 0; i < 200; i++) { /* more than the pipe has room for, less than the queue */
        log_info("%s", text);
    }
    require(write(control, "", 1) == 1, 17);
    log_writer_stop(1000 * CHILD_LIMIT_S);
    require(log_lines_lost() == 0, 16);
}

static void test_a_slow_reader_gets_every_line(void **state)
{
    (void)state;
    int fds[2], control[2];
    assert_int_equal(pipe(fds), 0);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, control), 0);
    assert_true(fcntl(fds[1], F_SETPIPE_SZ, PIPE_SMALL_BYTES) >= PIPE_SMALL_BYTES);
    pid_t child = fork_logging(fds[1], log_a_little, control[1]);
    close(fds[1]);
    close(control[1]);
    char bytes[1000];
    assert_int_equal(read(control[0], bytes, 1), 1);
    close(control[0]);
    ssize_t got;
    unsigned lines = 0;
    while ((got = read(fds[0], bytes, sizeof bytes)) > 0) {
        for (ssize_t i = 0; i < got; i++) {
            lines += bytes[i] == '\n';
        }
    }
    close(fds[0]);
    assert_int_equal(lines, 200);
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

static void test_limit_passes_a_burst_then_refills(void **state)
{
    (void)state;
    struct log_limit limit = {.burst = 3, .interval_ns = 10 * TIME_S};
    uint64_t now_ns = 1000 * TIME_S;
    uint64_t suppressed = 99;
    for (int i = 0; i < 3; i++) {
        assert_true(log_limit_pass(&limit, now_ns, &suppressed));
        assert_true(suppressed == 0);
    }
    for (int i = 0; i < 5; i++) {
        assert_false(log_limit_pass(&limit, now_ns + 9 * TIME_S, &suppressed));
    }
    assert_false(log_limit_pass(&limit, now_ns + 10 * TIME_S - 1, NULL));
    assert_true(log_limit_pass(&limit, now_ns + 10 * TIME_S, &suppressed));
    assert_true(suppressed == 6);
    assert_false(log_limit_pass(&limit, now_ns + 10 * TIME_S, &suppressed));
    /* 25 s after the last refill: two more lines, and the 5 s left over count. */
    assert_true(log_limit_pass(&limit, now_ns + 35 * TIME_S, &suppressed));
    assert_true(suppressed == 1);
    assert_true(log_limit_pass(&limit, now_ns + 35 * TIME_S, &suppressed));
    assert_true(suppressed == 0);
    assert_false(log_limit_pass(&limit, now_ns + 35 * TIME_S, &suppressed));
    assert_true(log_limit_pass(&limit, now_ns + 40 * TIME_S, &suppressed));
    assert_true(suppressed == 1);
}

static void test_limit_never_exceeds_its_burst(void **state)
{
    (void)state;
    struct log_limit limit = {.burst = 2, .interval_ns = TIME_S};
    assert_true(log_limit_pass(&limit, 0, NULL));
    uint64_t now_ns = 1000000 * TIME_S; /* after a long pause, the allowance is full, not more */
    for (int i = 0; i < 2; i++) {
        assert_true(log_limit_pass(&limit, now_ns, NULL));
    }
    assert_false(log_limit_pass(&limit, now_ns, NULL));
    assert_false(log_limit_pass(&limit, now_ns + TIME_S - 1, NULL)); /* counted from the first use */
    assert_true(log_limit_pass(&limit, now_ns + TIME_S, NULL));

    struct log_limit closed = {.burst = 0, .interval_ns = TIME_S};
    uint64_t suppressed = 99;
    assert_false(log_limit_pass(&closed, 5, NULL));
    assert_false(log_limit_pass(&closed, TIME_NEVER, &suppressed));
    assert_true(suppressed == 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_levels_filter, capture_start, capture_end),
        cmocka_unit_test(test_level_texts),
        cmocka_unit_test_setup_teardown(test_escapes, capture_start, capture_end),
        cmocka_unit_test_setup_teardown(test_long_lines_are_cut, capture_start, capture_end),
        cmocka_unit_test_setup_teardown(test_errno_is_kept, capture_start, capture_end),
        cmocka_unit_test(test_journal_lines_carry_priorities),
        cmocka_unit_test(test_plain_lines_carry_time_and_level),
        cmocka_unit_test(test_threads_do_not_mix_lines),
        cmocka_unit_test(test_a_full_pipe_blocks_nobody_and_lost_lines_are_counted),
        cmocka_unit_test(test_a_full_pipe_does_not_hold_up_the_end),
        cmocka_unit_test(test_a_reader_that_is_gone_ends_nobody),
        cmocka_unit_test(test_a_slow_reader_gets_every_line),
        cmocka_unit_test(test_limit_passes_a_burst_then_refills),
        cmocka_unit_test(test_limit_never_exceeds_its_burst),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
