/*
 * k-means (Lloyd 1982) on texts of the system. Each paragraph of the licences is a point: how often it has
 * each letter. The points are divided among the ranks, which sum each cluster's points with a group of
 * all-reduces. Rank 0 then does the same alone: the clusters must be the same.
 *
 *   kmeans [--name NAME] [--rank R --size N]
 */
#include <ctype.h>
#include <dirent.h>
#include <math.h>
#include <string.h>

#include "client/examples/example.h"

#define FOLDER "/usr/share/common-licenses"
enum { LETTERS = 26, CLUSTERS = 5, STEPS = 25, POINTS_MAX = 8192, PARAGRAPH_MIN = 80 };

struct point {
    int64_t letters[LETTERS]; /* per thousand: sums of whole numbers are the same in any order */
};

struct clusters {
    int64_t sums[CLUSTERS][LETTERS];
    int64_t counts[CLUSTERS];
};

static struct point points[POINTS_MAX];
static size_t point_count;

static void add_point(const int64_t *letters, int64_t total)
{
    if (total >= PARAGRAPH_MIN && point_count < POINTS_MAX) {
        for (int i = 0; i < LETTERS; i++) {
            points[point_count].letters[i] = letters[i] * 1000 / total;
        }
        point_count++;
    }
}

static void read_file(const char *path)
{
    FILE *file = fopen(path, "r");
    int64_t letters[LETTERS] = {0}, total = 0;
    int before = 0;
    for (int c; file != NULL && (c = fgetc(file)) != EOF; before = c) {
        if (c == '\n' && before == '\n') {
            add_point(letters, total);
            memset(letters, 0, sizeof letters);
            total = 0;
        } else if (isalpha(c) && isascii(c)) {
            letters[tolower(c) - 'a']++;
            total++;
        }
    }
    add_point(letters, total);
    if (file != NULL) {
        fclose(file);
    }
}

static int is_name(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

/* All ranks read the same files, in the same order. */
static void read_points(void)
{
    struct dirent **entries;
    int count = scandir(FOLDER, &entries, is_name, alphasort);
    for (int i = 0; i < count; i++) {
        char path[512];
        snprintf(path, sizeof path, FOLDER "/%s", entries[i]->d_name);
        read_file(path);
        free(entries[i]);
    }
    if (count >= 0) {
        free(entries);
    }
}

static int nearest(const struct point *point, double means[CLUSTERS][LETTERS])
{
    int best = 0;
    double least = INFINITY;
    for (int k = 0; k < CLUSTERS; k++) {
        double distance = 0;
        for (int i = 0; i < LETTERS; i++) {
            double off = (double)point->letters[i] - means[k][i];
            distance += off * off;
        }
        best = distance < least ? k : best;
        least = distance < least ? distance : least;
    }
    return best;
}

static void share_out(size_t first, size_t end, double means[CLUSTERS][LETTERS], struct clusters *clusters)
{
    memset(clusters, 0, sizeof *clusters);
    for (size_t i = first; i < end; i++) {
        int k = nearest(&points[i], means);
        clusters->counts[k]++;
        for (int letter = 0; letter < LETTERS; letter++) {
            clusters->sums[k][letter] += points[i].letters[letter];
        }
    }
}

static void move_means(double means[CLUSTERS][LETTERS], const struct clusters *clusters)
{
    for (int k = 0; k < CLUSTERS; k++) {
        for (int i = 0; i < LETTERS && clusters->counts[k] > 0; i++) {
            means[k][i] = (double)clusters->sums[k][i] / (double)clusters->counts[k];
        }
    }
}

static void begin_means(double means[CLUSTERS][LETTERS])
{
    for (size_t k = 0; k < CLUSTERS; k++) {
        const struct point *first = &points[k * point_count / CLUSTERS];
        for (int i = 0; i < LETTERS; i++) {
            means[k][i] = (double)first->letters[i];
        }
    }
}

int main(int argc, char **argv)
{
    struct example example = example_begin(argc, argv, "kmeans");
    double means[CLUSTERS][LETTERS], alone[CLUSTERS][LETTERS];
    struct clusters clusters;
    read_points();
    if (point_count < CLUSTERS) {
        fprintf(stderr, "kmeans: no texts in " FOLDER "\n");
        return EXIT_FAILURE;
    }
    size_t first = point_count * example.rank / example.size;
    size_t end = point_count * (example.rank + 1) / example.size;
    begin_means(means);
    for (int step = 0; step < STEPS; step++) {
        share_out(first, end, means, &clusters);
        example_check(comm_group_begin(), "group");
        example_check(comm_all_reduce(example.comm, clusters.sums, clusters.sums, (size_t)CLUSTERS * LETTERS,
                                      COMM_I64, COMM_SUM, NULL),
                      "all-reduce");
        example_check(comm_all_reduce(example.comm, clusters.counts, clusters.counts, CLUSTERS, COMM_I64,
                                      COMM_SUM, NULL),
                      "all-reduce");
        example_check(comm_group_end(), "group");
        example_check(comm_sync(example.comm, 0), "all-reduce");
        move_means(means, &clusters);
    }
    begin_means(alone);
    struct clusters whole;
    for (int step = 0; step < STEPS; step++) {
        share_out(0, point_count, alone, &whole);
        move_means(alone, &whole);
    }
    if (example.rank == 0) {
        printf("%zu paragraphs in %d clusters:", point_count, CLUSTERS);
        for (int k = 0; k < CLUSTERS; k++) {
            printf(" %lld", (long long)clusters.counts[k]);
        }
        printf("\n");
    }
    int same = 1;
    for (int k = 0; k < CLUSTERS; k++) {
        for (int i = 0; i < LETTERS; i++) {
            same = same && means[k][i] == alone[k][i];
        }
    }
    return example_end(&example, same, "clusters");
}
