#include <dirent.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/*
 * Replays a corpus through a fuzz target in the ordinary test run, without libFuzzer. It takes the given
 * files, or those of tests/fuzz/corpus/<target>. A file that a person named is also cut at up to 513 lengths,
 * evenly spread. There are many files that a merge named by their hash; they are not cut. Reports as a TAP
 * test.
 */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t size_max);

#define INPUT_MAX_BYTES (1u << 20)
#define HASH_DIGITS 40

static unsigned replayed;

/* Targets with mutators of their own link against this function of libFuzzer. A replay changes nothing. */
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t size_max)
{
    (void)data;
    return size < size_max ? size : size_max;
}

static bool is_merged(const char *path)
{
    const char *name = strrchr(path, '/') != NULL ? strrchr(path, '/') + 1 : path;
    return strlen(name) == HASH_DIGITS && strspn(name, "0123456789abcdef") == HASH_DIGITS;
}

static int replay(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        fprintf(stderr, "%s: cannot be read\n", path);
        return 1;
    }
    uint8_t *input = malloc(INPUT_MAX_BYTES);
    size_t size = input != NULL ? fread(input, 1, INPUT_MAX_BYTES, file) : 0;
    fclose(file);
    for (size_t cut = is_merged(path) ? size + 1 : 0; cut <= size && input != NULL; cut += 1 + size / 512) {
        /* A block of the exact size, so that a sanitizer notices every read beyond it. */
        uint8_t *exact = malloc(cut + (cut == 0));
        if (exact != NULL) {
            memcpy(exact, input, cut);
            LLVMFuzzerTestOneInput(exact, cut);
        }
        free(exact);
    }
    uint8_t *whole = malloc(size + (size == 0));
    if (input != NULL && whole != NULL) {
        memcpy(whole, input, size);
        LLVMFuzzerTestOneInput(whole, size);
    }
    free(whole);
    free(input);
    replayed++;
    return 0;
}

int main(int argc, char **argv)
{
    int failed = 0;
    const char *name = strrchr(argv[0], '/') != NULL ? strrchr(argv[0], '/') + 1 : argv[0];
    for (int i = 1; i < argc; i++) {
        failed |= replay(argv[i]);
    }
    if (argc == 1) {
        char folder[512];
        snprintf(folder, sizeof folder, "tests/fuzz/corpus/%s",
                 strncmp(name, "fuzz_", 5) == 0 ? name + 5 : name);
        DIR *entries = opendir(folder);
        for (struct dirent *entry; entries != NULL && (entry = readdir(entries)) != NULL;) {
            char path[1024];
            snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
            struct stat status;
            if (stat(path, &status) == 0 && S_ISREG(status.st_mode)) {
                failed |= replay(path);
            }
        }
        if (entries != NULL) {
            closedir(entries);
        }
        failed |= replayed == 0;
    }
    printf("1..1\n%s 1 - %s replays %u inputs\n", failed ? "not ok" : "ok", name, replayed);
    return failed;
}
