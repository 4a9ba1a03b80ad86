#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/un.h>

#include "daemon/conf/metrics_address.h"

/* Where metrics may be served: on this machine alone. */

static void test_taken(void **state)
{
    (void)state;
    const char *const texts[] = {"127.0.0.1:9464", "127.9.8.7:1", "localhost:65535", "[::1]:9464",
                                 "/run/commd/m.sock"};
    const sa_family_t families[] = {AF_INET, AF_INET, AF_INET, AF_INET6, AF_UNIX};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct sockaddr_storage address;
        socklen_t size_bytes;
        assert_null(conf_metrics_expected(texts[i]));
        assert_true(conf_metrics_address(texts[i], &address, &size_bytes));
        assert_int_equal(address.ss_family, families[i]);
    }
    assert_null(conf_metrics_expected("")); /* off */
}

static void test_port_and_path(void **state)
{
    (void)state;
    struct sockaddr_storage address;
    socklen_t size_bytes;
    assert_true(conf_metrics_address("127.0.0.1:9464", &address, &size_bytes));
    assert_int_equal(ntohs(((struct sockaddr_in *)&address)->sin_port), 9464);
    assert_int_equal(size_bytes, sizeof(struct sockaddr_in));
    assert_true(conf_metrics_address("/a b", &address, &size_bytes));
    assert_string_equal(((struct sockaddr_un *)&address)->sun_path, "/a b");
}

static void test_refused(void **state)
{
    (void)state;
    const char *const texts[] = {"0.0.0.0:9464",
                                 "192.0.2.1:9464",
                                 "[::]:9464",
                                 "[::1]",
                                 "[::1]9464",
                                 "::1:9464",
                                 "127.0.0.1",
                                 "127.0.0.1:",
                                 "127.0.0.1:0",
                                 "127.0.0.1:65536",
                                 "127.0.0.1:94640",
                                 "127.0.0.1:+80",
                                 "127.0.0.1:80 ",
                                 "9464",
                                 ":9464",
                                 "example.org:80",
                                 "on",
                                 "127.0.0.1:99999",
                                 "[127.0.0.1]:80",
                                 "relative/path"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        if (conf_metrics_expected(texts[i]) == NULL) {
            fail_msg("\"%s\" was taken", texts[i]);
        }
    }
    char path[200];
    memset(path, 'x', sizeof path);
    path[0] = '/';
    path[107] = '\0';
    assert_null(conf_metrics_expected(path));
    path[107] = 'x';
    path[108] = '\0';
    assert_non_null(conf_metrics_expected(path));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_taken),
        cmocka_unit_test(test_port_and_path),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
