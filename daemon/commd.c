#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <malloc.h>
#include <pthread.h>
#include <pwd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/base/descriptor.h"
#include "daemon/base/log.h"
#include "daemon/base/log_writer.h"
#include "daemon/base/trace.h"
#include "daemon/configuration.h"
#include "daemon/daemon.h"
#include "daemon/plan.h"
#include "proto/version.h"

#ifndef COMMD_SYSCONFDIR
#define COMMD_SYSCONFDIR "/etc"
#endif

/* Exit codes: 0 orderly end, 1 failure, 2 usage, 78 (EX_CONFIG) bad or no configuration. systemd does not
 * restart commd after 78. */
enum { EXIT_USAGE = 2, EXIT_CONFIG = 78 };

#define STACK_BYTES (8u << 20)       /* the usual limit */
#define STACK_MIN_BYTES (512u << 10) /* below that, commd does not start */
#define THREAD_STACK_BYTES (2u << 20)

#define LOG_FLUSH_MS 1000 /* how long commd waits at its end for a reader of its log */

/*
 * Memory for a slice or for early data is allocated and freed with each operation. By default glibc returns
 * blocks of 128 KiB and more to the kernel at once, and the page faults of the next operation cost more than
 * its network time. So blocks of up to 4 MiB stay in the process, and up to 16 MiB that are free.
 */
#define MALLOC_KEPT_BLOCK_BYTES (4 << 20)
#define MALLOC_KEPT_FREE_BYTES (16 << 20)

static const char usage_text[] =
    "usage: commd [OPTION...]\n"
    "Runs this node's collectives. Serves its processes on a Unix socket, and other nodes over QUIC.\n\n"
    "  -c, --config FILE     configuration (default " COMMD_SYSCONFDIR "/commd/commd.conf)\n"
    "      --standalone      one node, no configuration, no certificates, no network\n"
    "      --check-config    check the configuration, say what is wrong with it, and exit\n"
    "      --node NAME       this node's name (default: the host's name)\n"
    "      --socket PATH     the socket that clients connect to\n"
    "      --log-level LEVEL error, warning, info or debug\n"
    "  -s, --set KEY=VALUE   any other setting of the configuration\n"
    "      --version         print the version and exit\n"
    "  -h, --help            this text\n\n"
    "Stays in the foreground. SIGTERM drains and stops, SIGHUP reloads. See commd(8) and commd.conf(5).\n";

struct command_line {
    struct daemon_options daemon;
    const char *overrides[CONF_OVERRIDES_MAX];
    char texts[CONF_OVERRIDES_MAX][512];
    size_t override_count;
    bool check_only;
};

static bool add_override(struct command_line *line, const char *key, const char *value)
{
    if (line->override_count == CONF_OVERRIDES_MAX) {
        fprintf(stderr, "commd: more than %d settings on the command line\n", CONF_OVERRIDES_MAX);
        return false;
    }
    char *text = line->texts[line->override_count];
    int length = snprintf(text, sizeof line->texts[0], "%s%s%s", key, key[0] != '\0' ? "=" : "", value);
    if (length < 0 || (size_t)length >= sizeof line->texts[0]) {
        fprintf(stderr, "commd: a setting of more than %zu bytes\n", sizeof line->texts[0] - 1);
        return false;
    }
    line->overrides[line->override_count++] = text;
    return true;
}

/* The settings that have options of their own, from OPTION_SETTING on. */
static const char *const option_settings[] = {"node_name", "socket_path", "log_level"};
enum { OPTION_STANDALONE = 256, OPTION_CHECK, OPTION_VERSION, OPTION_SETTING };

static const struct option options[] = {
    {"config", required_argument, NULL, 'c'},
    {"standalone", no_argument, NULL, OPTION_STANDALONE},
    {"check-config", no_argument, NULL, OPTION_CHECK},
    {"node", required_argument, NULL, OPTION_SETTING},
    {"socket", required_argument, NULL, OPTION_SETTING + 1},
    {"log-level", required_argument, NULL, OPTION_SETTING + 2},
    {"set", required_argument, NULL, 's'},
    {"version", no_argument, NULL, OPTION_VERSION},
    {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0},
};

/* Returns -1 to continue, otherwise the exit code. */
static int parse_command_line(int argc, char **argv, struct command_line *line)
{
    struct conf_options *conf = &line->daemon.conf;
    bool fine = true;
    for (int option; fine && (option = getopt_long(argc, argv, "c:s:h", options, NULL)) != -1;) {
        switch (option) {
        case 'c':
            conf->path = optarg;
            break;
        case OPTION_STANDALONE:
            conf->standalone = true;
            break;
        case OPTION_CHECK:
            line->check_only = true;
            break;
        case 's':
            fine = add_override(line, "", optarg);
            break;
        case OPTION_VERSION:
            puts("commd " COMMD_VERSION_TEXT);
            return EXIT_SUCCESS;
        case 'h':
            fputs(usage_text, stdout);
            return EXIT_SUCCESS;
        default:
            fine = option >= OPTION_SETTING &&
                   add_override(line, option_settings[option - OPTION_SETTING], optarg);
            break;
        }
    }
    if (fine && optind < argc) {
        fprintf(stderr, "commd: unexpected argument: %s\n", argv[optind]);
        fine = false;
    }
    if (!fine) {
        fputs("Try 'commd --help'.\n", stderr);
        return EXIT_USAGE;
    }
    if (conf->path == NULL && !conf->standalone) {
        conf->path = COMMD_SYSCONFDIR "/commd/commd.conf";
    }
    conf->overrides = line->overrides;
    conf->override_count = line->override_count;
    return -1;
}

/* Raises the limit to the highest allowed value. Each client needs a few descriptors, and each of its
 * memories needs one for a moment. */
static void raise_descriptor_limit(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &limit);
    }
}

/*
 * The first thread's stack grows up to the soft limit, which is raised if it is small. By default, threads
 * get a stack of that limit, too, so theirs is set. Libraries that commd loads start threads as well.
 */
static enum status take_stack(struct error *error)
{
    struct rlimit limit;
    pthread_attr_t attributes;
    if (getrlimit(RLIMIT_STACK, &limit) == 0 && limit.rlim_cur < STACK_BYTES) {
        limit.rlim_cur = limit.rlim_max < STACK_BYTES ? limit.rlim_max : STACK_BYTES;
        (void)setrlimit(RLIMIT_STACK, &limit);
        if (limit.rlim_cur < STACK_MIN_BYTES) {
            return error_set(error, STATUS_LIMIT,
                             "the stack has at most %llu KiB (ulimit -s); commd needs %u KiB",
                             (unsigned long long)limit.rlim_cur >> 10, STACK_MIN_BYTES >> 10);
        }
        pthread_attr_init(&attributes);
        int failed = pthread_attr_setstacksize(&attributes, THREAD_STACK_BYTES);
        failed = failed != 0 ? failed : pthread_setattr_default_np(&attributes);
        pthread_attr_destroy(&attributes);
        if (failed != 0) {
            return error_set_errno(error, failed, "stacks of %u KiB for threads", THREAD_STACK_BYTES >> 10);
        }
    }
    return STATUS_OK;
}

/* Starts a trace if the environment asks for it. It is not a setting: people who look for a fault use it, and
 * it starts before any configuration is read. */
static enum status begin_trace(struct error *error)
{
    unsigned areas;
    if (!trace_areas_parse(getenv(TRACE_ENVIRONMENT), &areas)) {
        return error_set(error, STATUS_CONFIG, TRACE_ENVIRONMENT " is not comm, op or comm,op");
    }
    return trace_begin(areas, error);
}

/* Root may read every key. Whether the service's user may read this one, root's check cannot tell. */
static void note_owner_of_key(const struct conf *conf)
{
    struct stat file;
    if (geteuid() == 0 && !conf->standalone && stat(conf->key, &file) == 0) {
        const struct passwd *owner = getpwuid(file.st_uid);
        printf("checked as root: %s belongs to %s (uid %u), so commd must run as that user or as root\n",
               conf->key, owner != NULL ? owner->pw_name : "nobody known", (unsigned)file.st_uid);
    }
}

static int check_configuration(const struct conf_options *conf_options)
{
    struct configuration configuration;
    struct error error;
    if (configuration_prepare(conf_options, NULL, &configuration, &error) != STATUS_OK) {
        fprintf(stderr, "commd: %s\n", error.text);
        return EXIT_CONFIG;
    }
    const struct conf *conf = configuration.conf;
    printf("%s: fine: node %s%s, %zu other nodes\n", conf->path[0] != '\0' ? conf->path : "no file",
           conf->node_name, conf->standalone ? ", standalone" : "", conf->node_count);
    note_owner_of_key(conf);
    configuration_free(&configuration);
    return EXIT_SUCCESS;
}

static void keep_freed_memory(void)
{
    (void)mallopt(M_MMAP_THRESHOLD, MALLOC_KEPT_BLOCK_BYTES);
    (void)mallopt(M_TRIM_THRESHOLD, MALLOC_KEPT_FREE_BYTES);
}

/* The log goes to descriptor 2. If it is closed, the next file would get that number, and the log. */
static void keep_standard_descriptors(void)
{
    int fd;
    do {
        fd = open("/dev/null", O_RDWR); /* without CLOEXEC, as others find them */
    } while (fd >= 0 && fd <= STDERR_FILENO);
    descriptor_close(fd);
}

/* Output that was lost, as on a full disk, is a failure, too. */
static int finish_output(int exit_code)
{
    bool failed = ferror(stdout) != 0;
    if (fflush(stdout) == 0 && !failed) {
        return exit_code;
    }
    fprintf(stderr, "commd: the output cannot be written: %s\n", strerror(errno));
    return exit_code == EXIT_SUCCESS ? EXIT_FAILURE : exit_code;
}

int main(int argc, char **argv)
{
    static struct command_line line;
    if (argc > 1 && strcmp(argv[1], "--plan") == 0) {
        return finish_output(plan_run(argc - 2, argv + 2));
    }
    int exit_code = parse_command_line(argc, argv, &line);
    if (exit_code >= 0) {
        return finish_output(exit_code);
    }
    struct error error;
    if (line.check_only) {
        return finish_output(check_configuration(&line.daemon.conf));
    }
    raise_descriptor_limit();
    keep_freed_memory();
    keep_standard_descriptors();
    (void)signal(SIGPIPE, SIG_IGN); /* a closed log or socket must not end the process */
    (void)signal(SIGXFSZ, SIG_IGN); /* nor must a limit of files (ulimit -f), which counts in memory, too */
    enum status status = log_writer_start(&error);
    if (status == STATUS_OK) {
        status = take_stack(&error);
    }
    if (status == STATUS_OK) {
        status = begin_trace(&error);
    }
    if (status == STATUS_OK) {
        status = daemon_run(&line.daemon, &error);
    }
    if (status != STATUS_OK) {
        log_error("%s", error.text);
        exit_code = status == STATUS_CONFIG || status == STATUS_CERTIFICATE ? EXIT_CONFIG : EXIT_FAILURE;
    } else {
        exit_code = EXIT_SUCCESS;
    }
    log_writer_stop(LOG_FLUSH_MS);
    return exit_code;
}
