#include <sys/mman.h>
#include <unistd.h>

#include "daemon/coll/overrides.h"
#include "daemon/conf/conf.h"
#include "tests/fuzz/input.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
const char *__lsan_default_suppressions(void);

#define OPTION_MAX_BYTES 256

/* Not a fault of this project: libconfig (1.7 at least) leaks memory of its scanner when a file ends
 * within a quoted text or an @include. */
const char *__lsan_default_suppressions(void)
{
    return "leak:libconfig_yylex\nleak:strbuf_append";
}

static void on_setting(void *context, const char *key, const char *value, const char *source,
                       const struct conf_waiting *waiting)
{
    (void)waiting;
    size_t *bytes = context;
    *bytes += strlen(key) + strlen(value) + strlen(source);
}

static void on_difference(void *context, const char *key, const char *value, bool reloadable)
{
    (void)context;
    (void)key;
    (void)value;
    (void)reloadable;
    fuzz_require(false);
}

/* Checks that accepted settings can be shown, compared and used. */
static void use(struct conf *conf, const struct conf_options *options)
{
    size_t bytes = 0;
    struct conf *again = NULL;
    struct coll_overrides overrides;
    conf_visit(conf, on_setting, &bytes);
    fuzz_require(bytes > 0);
    fuzz_require(conf_node_name_is_valid(conf->node_name));
    for (size_t i = 0; i < conf->node_count; i++) {
        fuzz_require(conf_node_name_is_valid(conf->nodes[i].name));
        fuzz_require(strcmp(conf->nodes[i].name, conf->node_name) != 0);
    }
    (void)!coll_overrides_parse(conf->algorithms, &overrides, NULL);
    fuzz_require(conf_load(options, &again, NULL) == STATUS_OK); /* loading again must give the same */
    conf_compare(conf, again, on_difference, NULL);
    conf_free(again);
}

/*
 * The first byte says whether commd is standalone, and how many of the following lines are options of the
 * command line. The rest is the file. It must be refused with a text, or all of it must be usable.
 */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char options[3][OPTION_MAX_BYTES];
    static const char *const overrides[] = {options[0], options[1], options[2]};
    static char path[64];
    static int fd = -1;
    if (size < 1) {
        return 0;
    }
    if (fd < 0) {
        fd = memfd_create("commd.conf", MFD_CLOEXEC);
        fuzz_require(fd >= 0);
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    }
    struct conf_options conf_options = {.path = path,
                                        .standalone = (data[0] & 4) != 0,
                                        .overrides = overrides,
                                        .override_count = data[0] & 3};
    const uint8_t *at = data + 1, *end = data + size;
    for (size_t i = 0; i < conf_options.override_count; i++) {
        const uint8_t *line = memchr(at, '\n', (size_t)(end - at));
        size_t length = (size_t)((line != NULL ? line : end) - at);
        size_t kept = length < OPTION_MAX_BYTES ? length : OPTION_MAX_BYTES - 1;
        memcpy(options[i], at, kept);
        options[i][kept] = '\0';
        at += line != NULL ? length + 1 : length;
    }
    fuzz_require(ftruncate(fd, 0) == 0);
    fuzz_require(pwrite(fd, at, (size_t)(end - at), 0) == end - at);
    if ((data[0] & 8) != 0) {
        conf_options.path = NULL; /* there is no file */
        conf_options.standalone = true;
    }
    struct conf *conf = NULL;
    struct error error = {.status = STATUS_OK};
    enum status status = conf_load(&conf_options, &conf, &error);
    fuzz_require(status == error.status || status == STATUS_OK);
    fuzz_require((status == STATUS_OK) == (conf != NULL));
    if (conf != NULL) {
        use(conf, &conf_options);
        conf_free(conf);
    } else {
        fuzz_require(error.text[0] != '\0');
    }
    return 0;
}
