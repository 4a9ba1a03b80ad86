#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>

#include "daemon/api/metrics_http.h"
#include "tests/unit/api/metrics_node.h"

/* The metrics over HTTP, and clients that behave as no scraper does. */

#define ANSWER_MAX_BYTES (1u << 20)

static char place[96];

static struct metrics_node *begin(void)
{
    snprintf(place, sizeof place, "/tmp/commd-test-metrics-%d.sock", (int)getpid());
    struct metrics_node *own = metrics_node_new(64, 4, place);
    metrics_node_fill_ops(own);
    return own;
}

static void end(struct metrics_node *own)
{
    metrics_node_free(own);
    assert_int_equal(access(place, F_OK), -1); /* the file is removed */
}

static int scraper_new(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strcpy(address.sun_path, place);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    assert_true(fd >= 0);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

static void send_text(int fd, const char *text)
{
    assert_int_equal(send(fd, text, strlen(text), MSG_NOSIGNAL), strlen(text));
}

/* Reads until commd closes, or for wait_ms. Returns whether it closed. The answer is in `answer`. */
static char answer[ANSWER_MAX_BYTES + 1];

static bool read_answer(struct metrics_node *own, int fd, unsigned wait_ms)
{
    size_t used = 0;
    uint64_t until_ns = loop_now_ns() + wait_ms * TIME_MS;
    while (loop_now_ns() < until_ns) {
        ssize_t size = recv(fd, answer + used, ANSWER_MAX_BYTES - used, MSG_DONTWAIT);
        if (size == 0 || (size < 0 && errno != EAGAIN)) {
            answer[used] = '\0';
            return true;
        }
        used += size > 0 ? (size_t)size : 0;
        node_turn(own->node);
    }
    answer[used] = '\0';
    return false;
}

static void scrape(struct metrics_node *own)
{
    int fd = scraper_new();
    assert_true(fd >= 0);
    send_text(fd, "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_true(read_answer(own, fd, 5000));
    assert_int_equal(strncmp(answer, "HTTP/1.1 200 OK\r\n", 17), 0);
    assert_contains(answer, "\ncommd_uptime_seconds ");
    close(fd);
}

static void test_both_formats(void **state)
{
    (void)state;
    struct metrics_node *own = begin();
    scrape(own);
    assert_contains(answer, "Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n");
    assert_null(strstr(answer, "# EOF"));
    int fd = scraper_new();
    send_text(
        fd,
        "GET /metrics HTTP/1.1\r\nHost: a\r\nAccept: application/openmetrics-text;version=1.0.0,"
        "application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1\r\n\r\n");
    assert_true(read_answer(own, fd, 5000));
    assert_contains(answer, "Content-Type: application/openmetrics-text; version=1.0.0; charset=utf-8\r\n");
    assert_string_equal(answer + strlen(answer) - 6, "# EOF\n");
    close(fd);
    end(own);
}

static void test_other_requests(void **state)
{
    (void)state;
    static const struct {
        const char *request, *status;
    } cases[] = {
        {"GET / HTTP/1.1\r\nHost: a\r\n\r\n", "HTTP/1.1 404"},
        {"GET /metrics/../secret HTTP/1.1\r\nHost: a\r\n\r\n", "HTTP/1.1 404"},
        {"POST /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n", "HTTP/1.1 501"},
        {"HEAD /metrics HTTP/1.1\r\nHost: a\r\n\r\n", "HTTP/1.1 200"},
        {"GET /metrics HTTP/1.0\r\n\r\n", "HTTP/1.0 200"},
    };
    struct metrics_node *own = begin();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int fd = scraper_new();
        assert_true(fd >= 0);
        send_text(fd, cases[i].request);
        if (!read_answer(own, fd, 5000) || strncmp(answer, cases[i].status, strlen(cases[i].status)) != 0) {
            fail_msg("%s\n%.200s", cases[i].request, answer);
        }
        close(fd);
    }
    end(own);
}

static void test_garbage(void **state)
{
    (void)state;
    struct metrics_node *own = begin();
    char junk[4096];
    for (size_t i = 0; i < sizeof junk; i++) {
        junk[i] = (char)(i * 167 + 13);
    }
    for (unsigned i = 0; i < 4; i++) {
        int fd = scraper_new();
        assert_true(fd >= 0);
        (void)send(fd, junk + i, sizeof junk - i, MSG_NOSIGNAL);
        if (i % 2 == 0) {
            (void)send(fd, "\r\n\r\n", 4, MSG_NOSIGNAL);
        }
        (void)read_answer(own, fd, 200);
        assert_null(strstr(answer, "commd_uptime"));
        close(fd);
    }
    scrape(own);
    end(own);
}

/* Headers without an end: the connection is closed, and little is kept. */
static void test_endless_headers(void **state)
{
    (void)state;
    struct metrics_node *own = begin();
    int fd = scraper_new();
    char line[1024] = "X-A: ";
    memset(line + 5, 'a', sizeof line - 7);
    memcpy(line + sizeof line - 2, "\r\n", 2);
    send_text(fd, "GET /metrics HTTP/1.1\r\n");
    size_t sent = 0;
    for (unsigned i = 0; i < 4096; i++) {
        ssize_t size = send(fd, line, sizeof line, MSG_NOSIGNAL | MSG_DONTWAIT);
        sent += size > 0 ? (size_t)size : 0;
        node_turn(own->node);
    }
    assert_true(read_answer(own, fd, 3000));
    assert_int_equal(strncmp(answer, "HTTP/1.1 400 ", 13), 0);
    assert_true(sent < (1u << 20)); /* what the kernel holds, and METRICS_HEADERS_MAX_BYTES */
    close(fd);
    scrape(own);
    end(own);
}

/* Waits until so many descriptors are open: commd has closed its ends. */
static void expect_fds(struct metrics_node *own, unsigned count)
{
    while (count_fds() > count) {
        node_turn(own->node);
    }
    assert_int_equal(count_fds(), count);
}

/* Many connections that say nothing: at most METRICS_CONNECTIONS_MAX are held, for METRICS_SILENCE_S. Then
 * the next scraper has its turn. */
static void test_silent_crowd(void **state)
{
    (void)state;
    struct metrics_node *own = begin();
    int fds[64];
    unsigned open = 0, before = count_fds();
    for (unsigned i = 0; i < 64; i++) {
        fds[i] = scraper_new(); /* the kernel's queue is short, too */
        open += fds[i] >= 0;
        node_turns(own->node, 3);
    }
    assert_true(open > METRICS_CONNECTIONS_MAX);
    assert_true(count_fds() <= before + open + METRICS_CONNECTIONS_MAX);
    for (unsigned i = 0; i < 64; i++) {
        if (fds[i] >= 0) {
            close(fds[i]);
        }
    }
    expect_fds(own, before);
    scrape(own);
    end(own);
}

/* A scraper that does not read keeps its text, and is cut off METRICS_CONNECTION_MAX_NS after it came. One
 * that sends a byte now and then is cut off as well. */
static void test_never_reads_and_drips(void **state)
{
    (void)state;
    struct metrics_node *own = begin();
    unsigned before = count_fds();
    int stuck = scraper_new(), drips = scraper_new();
    int size = 4096;
    (void)setsockopt(stuck, SOL_SOCKET, SO_RCVBUF, &size, sizeof size);
    send_text(stuck, "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n");
    uint64_t began_ns = loop_now_ns(), drip_ns = began_ns;
    bool dripped_out = false;
    while (!dripped_out) {
        node_turn(own->node);
        if (loop_now_ns() - drip_ns > TIME_S / 2) {
            drip_ns = loop_now_ns();
            dripped_out = send(drips, "G", 1, MSG_NOSIGNAL) < 0;
        }
    }
    assert_true(loop_now_ns() - began_ns >= METRICS_CONNECTION_MAX_NS - TIME_S);
    expect_fds(own, before + 2); /* ours alone */
    close(stuck);
    close(drips);
    scrape(own);
    end(own);
}

/* If more connections come in a second than commd accepts, they wait. None is lost. */
static void test_rate(void **state)
{
    (void)state;
    struct metrics_node *own = begin();
    uint64_t began_ns = loop_now_ns();
    for (unsigned i = 0; i < 2 * METRICS_ACCEPTS_PER_S + 1; i++) {
        scrape(own);
    }
    assert_true(loop_now_ns() - began_ns >= TIME_S);
    end(own);
}

/* --- The socket --- */

static void nothing(void *context, struct metrics_text *text, uint64_t now_ns)
{
    (void)context;
    (void)text;
    (void)now_ns;
}

static void test_place(void **state)
{
    (void)state;
    struct metrics_node *own = begin();
    struct metrics_http *http = NULL;
    struct error error;
    assert_int_equal(metrics_http_new(own->node->loop, place, nothing, NULL, &http, &error),
                     STATUS_ALREADY_EXISTS);
    assert_contains(error.text, "answers there");
    assert_int_equal(metrics_http_new(own->node->loop, "0.0.0.0:9464", nothing, NULL, &http, &error),
                     STATUS_CONFIG);
    assert_int_equal(metrics_http_new(own->node->loop, "/nonexistent/x.sock", nothing, NULL, &http, &error),
                     STATUS_SYSTEM);
    end(own);
    /* A file of a process that ended is replaced; any other file is not. */
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strcpy(address.sun_path, place);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    close(fd);
    own = begin();
    scrape(own);
    end(own);
    fd = open(place, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    close(fd);
    struct node *node = node_new();
    assert_int_not_equal(metrics_http_new(node->loop, place, nothing, NULL, &http, &error), STATUS_OK);
    assert_int_equal(access(place, F_OK), 0);
    assert_int_equal(unlink(place), 0);
    node_free(node);
}

int main(void)
{
    (void)signal(SIGPIPE, SIG_IGN); /* as commd does */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_both_formats), cmocka_unit_test(test_other_requests),
        cmocka_unit_test(test_garbage),      cmocka_unit_test(test_endless_headers),
        cmocka_unit_test(test_silent_crowd), cmocka_unit_test(test_never_reads_and_drips),
        cmocka_unit_test(test_rate),         cmocka_unit_test(test_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
