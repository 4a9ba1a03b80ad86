#ifndef DAEMON_NET_WORK_LIST_H
#define DAEMON_NET_WORK_LIST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <utlist.h>

/*
 * What an event leaves to do: objects in the order in which they were noted, each at most once. Both kinds of
 * link use such lists. An object has an item for each list that it can be in. Lists and items are zero at
 * first. Single-threaded.
 */
struct work_item {
    struct work_item *prev, *next;
    void *owner; /* null: it is not listed */
};

struct work_list {
    struct work_item *first;
    uint32_t count;
};

static inline bool work_is_listed(const struct work_item *item)
{
    return item->owner != NULL;
}

/* Returns whether the item is new in the list. */
static inline bool work_list_add(struct work_list *list, struct work_item *item, void *owner)
{
    if (work_is_listed(item)) {
        return false;
    }
    item->owner = owner;
    DL_APPEND(list->first, item);
    list->count++;
    return true;
}

static inline void work_list_remove(struct work_list *list, struct work_item *item)
{
    if (work_is_listed(item)) {
        item->owner = NULL;
        DL_DELETE(list->first, item);
        list->count--;
    }
}

/*
 * Removes the first item and returns its owner. Returns null if the list is empty, or `*left` is 0. Otherwise
 * subtracts 1 from it: begin with the list's count to leave for later what is added meanwhile.
 */
static inline void *work_list_take(struct work_list *list, uint32_t *left)
{
    struct work_item *item = list->first;
    if (item == NULL || *left == 0) {
        return NULL;
    }
    void *owner = item->owner;
    work_list_remove(list, item);
    --*left;
    return owner;
}

#endif
