#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tests/cuda_double/traffic.h"

#define RULES_MAX 16

/* "symbol:first[+][=result]" */
struct rule {
    char symbol[64];
    unsigned first;
    bool later;
    int result; /* 0: the usual result */
    unsigned calls;
};

static struct settings values;
static struct rule rules[RULES_MAX];
static size_t rule_count;
static pthread_mutex_t rules_lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t random_state = 1;

static uint64_t number_of(const char *name, uint64_t otherwise, uint64_t most)
{
    const char *text = getenv(name);
    if (text == NULL || text[0] == '\0') {
        return otherwise;
    }
    char *end = NULL;
    unsigned long long number = strtoull(text, &end, 0);
    if (*end != '\0' || number > most) {
        (void)fprintf(stderr, "cuda_double: %s=%s: expected a number up to %llu\n", name, text,
                      (unsigned long long)most);
        abort(); /* a test with a wrong setting must not go on */
    }
    return number;
}

void settings_read(void)
{
    const char *folder = getenv("CUDA_DOUBLE_FOLDER");
    values.device_count = (int)number_of("CUDA_DOUBLE_DEVICES", 4, DEVICES_MAX);
    values.memory_bytes = number_of("CUDA_DOUBLE_MEMORY_BYTES", 1ull << 30, 1ull << 40);
    values.mps = number_of("CUDA_DOUBLE_MPS", 0, 1) != 0;
    values.peer = number_of("CUDA_DOUBLE_PEER", 1, 1) != 0;
    values.imports_peer = number_of("CUDA_DOUBLE_IMPORTS_PEER", 1, 1) != 0;
    values.virtual_memory = number_of("CUDA_DOUBLE_VIRTUAL_MEMORY", 1, 1) != 0;
    values.mappings_numbered = number_of("CUDA_DOUBLE_MAPPINGS_NUMBERED", 1, 1) != 0;
    values.blocking_allocation = number_of("CUDA_DOUBLE_BLOCKING_ALLOCATION", 0, 1) != 0;
    values.delay_us = (unsigned)number_of("CUDA_DOUBLE_DELAY_US", 0, 10000000);
    values.slow = getenv("CUDA_DOUBLE_SLOW");
    values.slow_while = getenv("CUDA_DOUBLE_SLOW_WHILE");
    values.slow_device = (int)number_of("CUDA_DOUBLE_SLOW_DEVICE", DEVICES_MAX, DEVICES_MAX);
    values.kernel_us = (unsigned)number_of("CUDA_DOUBLE_KERNEL_US", 0, 10000000);
    values.kernel_us_per_mib = (unsigned)number_of("CUDA_DOUBLE_KERNEL_US_PER_MIB", 0, 10000000);
    values.nccl_us = (unsigned)number_of("CUDA_DOUBLE_NCCL_US", 0, 10000000);
    values.hang_ms = (unsigned)number_of("CUDA_DOUBLE_HANG_MS", 2000, 3600000);
    values.nccl_off_main = number_of("CUDA_DOUBLE_NCCL_OFF_MAIN", 0, 1) != 0;
    values.nccl_windows = number_of("CUDA_DOUBLE_NCCL_WINDOWS", 1, 1) != 0;
    values.capability = (int)number_of("CUDA_DOUBLE_CAPABILITY", 90, 129);
    (void)number_of("CUDA_DOUBLE_NCCL_VERSION", 0, 99999); /* nccl.c */
    values.connections = (unsigned)number_of("CUDA_DEVICE_MAX_CONNECTIONS", 0, CONNECTIONS_MAX);
    values.connections = (unsigned)number_of("CUDA_DOUBLE_CONNECTIONS", values.connections, CONNECTIONS_MAX);
    random_state = number_of("CUDA_DOUBLE_SEED", 1, UINT64_MAX);
    if (folder != NULL && folder[0] != '\0') {
        if (strlen(folder) >= sizeof values.folder) {
            (void)fprintf(stderr, "cuda_double: CUDA_DOUBLE_FOLDER: too long\n");
            abort();
        }
        (void)snprintf(values.folder, sizeof values.folder, "%s", folder);
    } else {
        (void)snprintf(values.folder, sizeof values.folder, "/dev/shm/cuda_double-%u", (unsigned)getuid());
    }
    traffic_open();
    cuda_double_fail(getenv("CUDA_DOUBLE_FAIL"));
}

const struct settings *settings(void)
{
    return &values;
}

/* Stands for the time that a GPU needs. */
static void sleep_us(uint64_t pause_us)
{
    struct timespec pause = {.tv_sec = (time_t)(pause_us / 1000000),
                             .tv_nsec = (long)(pause_us % 1000000 * 1000)};
    if (pause_us > 0) {
        (void)nanosleep(&pause, NULL);
    }
}

void settings_delay(void)
{
    if (values.delay_us == 0) {
        return;
    }
    uint64_t step = __atomic_add_fetch(&random_state, 0x9e3779b97f4a7c15u, __ATOMIC_RELAXED);
    step = (step ^ (step >> 30)) * 0xbf58476d1ce4e5b9u;
    step = (step ^ (step >> 27)) * 0x94d049bb133111ebu;
    uint64_t pause_us = (step ^ (step >> 31)) % (values.delay_us + 1u);
    sleep_us(pause_us);
}

void settings_delay_kernel(uint64_t bytes)
{
    sleep_us(values.kernel_us + bytes * values.kernel_us_per_mib / (1u << 20));
}

void settings_delay_nccl(void)
{
    sleep_us(values.nccl_us);
}

/* In CUDA_DOUBLE_SLOW; 0: not there. A rule for "cuIpcOpenMemHandle" also applies to its later versions. */
static uint64_t slow_ms(const char *symbol)
{
    const char *at = values.slow;
    while (at != NULL && *at != '\0') {
        size_t length = strcspn(at, ":,");
        if (at[length] == ':' && strncmp(at, symbol, length) == 0 &&
            (symbol[length] == '\0' || strncmp(symbol + length, "_v", 2) == 0)) {
            return strtoull(at + length + 1, NULL, 10);
        }
        at += strcspn(at, ",");
        at += *at == ',' ? 1 : 0;
    }
    return 0;
}

void settings_delay_call(const char *symbol, int device)
{
    bool applies = values.slow_device == DEVICES_MAX || values.slow_device == device;
    uint64_t ms = applies ? slow_ms(symbol) : 0;
    const char *file = values.slow_while;
    uint64_t end_ns = now_ns() + ms * 1000000u;
    while (ms > 0 && now_ns() < end_ns && (file == NULL || access(file, F_OK) == 0)) {
        sleep_us(1000);
    }
}

static void rule_add(const char *text)
{
    struct rule rule = {.calls = 0};
    char mark[2] = "";
    int taken = 0;
    int fields = sscanf(text, "%63[^:]:%u%n%1[+]%n", rule.symbol, &rule.first, &taken, mark, &taken);
    if (fields < 2 || rule.first == 0 || rule_count == RULES_MAX ||
        (text[taken] != '\0' && sscanf(text + taken, "=%d", &rule.result) != 1)) {
        (void)fprintf(stderr, "cuda_double: CUDA_DOUBLE_FAIL: \"%s\" is not symbol:number[+][=result]\n",
                      text);
        abort();
    }
    rule.later = mark[0] == '+';
    rules[rule_count++] = rule;
}

void cuda_double_fail(const char *text)
{
    char copy[1024] = "";
    char *rest = NULL;
    pthread_mutex_lock(&rules_lock);
    rule_count = 0;
    if (text != NULL) {
        (void)snprintf(copy, sizeof copy, "%s", text);
    }
    for (char *one = strtok_r(copy, ",", &rest); one != NULL; one = strtok_r(NULL, ",", &rest)) {
        rule_add(one);
    }
    pthread_mutex_unlock(&rules_lock);
}

/* A rule for "cuMemAlloc" also applies to its later versions, such as cuMemAlloc_v2. */
static bool rule_is_of(const struct rule *rule, const char *symbol)
{
    size_t length = strlen(rule->symbol);
    return strncmp(rule->symbol, symbol, length) == 0 &&
           (symbol[length] == '\0' || strncmp(symbol + length, "_v", 2) == 0);
}

bool fail_now(const char *symbol, int *result)
{
    bool fails = false;
    pthread_mutex_lock(&rules_lock);
    for (size_t i = 0; i < rule_count; i++) {
        struct rule *rule = &rules[i];
        if (!rule_is_of(rule, symbol)) {
            continue;
        }
        rule->calls++;
        if (rule->calls == rule->first || (rule->later && rule->calls > rule->first)) {
            fails = true;
            *result = rule->result != 0 ? rule->result : *result;
        }
    }
    pthread_mutex_unlock(&rules_lock);
    return fails;
}
