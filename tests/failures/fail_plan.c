#include "tests/failures/fail_plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *grown(void *list, size_t used, size_t item_bytes)
{
    if ((used & (used - 1)) == 0) { /* the list is full at each power of two */
        list = reallocarray(list, used == 0 ? 1 : 2 * used, item_bytes);
        if (list == NULL) {
            perror("a plan of failing calls");
            exit(EXIT_FAILURE);
        }
    }
    return list;
}

void fail_plan_add(struct fail_plan *plan, const struct fail_state *counted)
{
    for (size_t i = 0; i < FAIL_SITES_MAX; i++) {
        const struct fail_site *site = &counted->sites[i];
        size_t at = 0;
        if (!atomic_load(&site->complete)) {
            continue;
        }
        while (at < plan->sites_used && plan->sites[at].id != site->id) {
            at++;
        }
        if (at == plan->sites_used) {
            plan->sites = grown(plan->sites, plan->sites_used, sizeof *plan->sites);
            memcpy(&plan->sites[plan->sites_used++], site, sizeof *site);
        } else if (site->count < plan->sites[at].count) {
            atomic_store(&plan->sites[at].count, atomic_load(&site->count));
        }
    }
}

static int compare_sites(const void *left, const void *right)
{
    const struct fail_site *a = left, *b = right;
    int order = strcmp(a->call, b->call);
    for (int i = 0; i < FAIL_FRAMES && order == 0; i++) {
        order = a->frames[i] < b->frames[i] ? -1 : a->frames[i] > b->frames[i];
    }
    return order;
}

static void add_run(struct fail_plan *plan, struct fail_plan_run run)
{
    plan->runs = grown(plan->runs, plan->runs_used, sizeof *plan->runs);
    plan->runs[plan->runs_used++] = run;
}

static void add_some(struct fail_plan *plan, size_t index)
{
    const struct fail_site *site = &plan->sites[index];
    size_t first = plan->runs_used;
    for (uint32_t i = 0; i < FAIL_RUNS_A_SITE; i++) {
        struct fail_plan_run run = {.site = index,
                                    .occurrence = 1 + i * (site->count - 1) / (FAIL_RUNS_A_SITE - 1),
                                    .errnum = i % site->errnos};
        bool again = false;
        for (size_t j = first; j < plan->runs_used; j++) {
            again |= plan->runs[j].occurrence == run.occurrence && plan->runs[j].errnum == run.errnum;
        }
        if (!again) {
            add_run(plan, run);
        }
    }
}

void fail_plan_make(struct fail_plan *plan, bool every)
{
    qsort(plan->sites, plan->sites_used, sizeof *plan->sites, compare_sites);
    for (size_t i = 0; i < plan->sites_used; i++) {
        if (!every) {
            add_some(plan, i);
        }
        for (uint64_t at = 1; every && at <= plan->sites[i].count; at++) {
            add_run(plan, (struct fail_plan_run){
                              .site = i, .occurrence = at, .errnum = (uint32_t)(at % plan->sites[i].errnos)});
        }
    }
}

void fail_plan_free(struct fail_plan *plan)
{
    free(plan->sites);
    free(plan->runs);
    *plan = (struct fail_plan){0};
}
