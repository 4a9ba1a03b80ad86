#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#include "daemon/comm/comms_internal.h"

/* A name that a user has used. */
struct comms_name {
    struct comms_name *prev, *next; /* of the user's names, least recently used first */
    uint32_t generation;
    struct owned_name key;
    UT_hash_handle hh;
};

/* A user's names. */
struct comms_names {
    uint32_t owner_uid;
    uint32_t count;
    struct comms_name *by_key;
    struct comms_name *by_age;
    UT_hash_handle hh;
};

static void name_forget(struct comms *comms, struct comms_names *names, struct comms_name *name)
{
    HASH_DEL(names->by_key, name);
    DL_DELETE(names->by_age, name);
    free(name);
    names->count--;
    comms->name_count--;
    if (names->count == 0) {
        HASH_DEL(comms->names, names);
        free(names);
    }
}

static void forget_of_largest(struct comms *comms)
{
    struct comms_names *names, *next, *largest = NULL;
    HASH_ITER (hh, comms->names, names, next) {
        largest = largest == NULL || names->count > largest->count ? names : largest;
    }
    if (largest != NULL) {
        name_forget(comms, largest, largest->by_age);
    }
}

static struct comms_names *names_of(struct comms *comms, uint32_t owner_uid)
{
    struct comms_names *names;
    HASH_FIND(hh, comms->names, &owner_uid, sizeof owner_uid, names);
    return names;
}

/* Returns null without memory: then the name is not remembered. */
static struct comms_name *name_new(struct comms *comms, uint32_t owner_uid, const char *text)
{
    struct comms_name *name = calloc(1, sizeof *name);
    if (name == NULL) {
        return NULL;
    }
    if (comms->name_count >= COMMS_NAMES_MAX) {
        forget_of_largest(comms);
    }
    struct comms_names *names = names_of(comms, owner_uid);
    if (names == NULL) {
        names = calloc(1, sizeof *names);
        if (names == NULL) {
            free(name);
            return NULL;
        }
        names->owner_uid = owner_uid;
        HASH_ADD(hh, comms->names, owner_uid, sizeof names->owner_uid, names);
        if (!table_has(names, hh)) {
            free(names);
            free(name);
            return NULL;
        }
    } else if (names->count >= COMMS_NAMES_OF_USER_MAX) {
        name_forget(comms, names, names->by_age);
    }
    size_t key_bytes = owned_name_make(&name->key, owner_uid, text);
    HASH_ADD(hh, names->by_key, key, key_bytes, name);
    if (!table_has(name, hh)) {
        free(name);
        if (names->count == 0) {
            HASH_DEL(comms->names, names);
            free(names);
        }
        return NULL;
    }
    DL_APPEND(names->by_age, name);
    names->count++;
    comms->name_count++;
    return name;
}

uint32_t comms_names_next_generation(struct comms *comms, uid_t owner_uid, const char *text)
{
    struct comms_names *names = names_of(comms, owner_uid);
    struct comms_name *name = NULL;
    if (names != NULL) {
        struct owned_name key;
        size_t key_bytes = owned_name_make(&key, owner_uid, text);
        HASH_FIND(hh, names->by_key, &key, key_bytes, name);
    }
    if (name != NULL) {
        DL_DELETE(names->by_age, name);
        DL_APPEND(names->by_age, name);
    } else {
        name = name_new(comms, owner_uid, text);
    }
    return name != NULL ? ++name->generation : 1;
}

void comms_names_free(struct comms *comms)
{
    while (comms->names != NULL) {
        name_forget(comms, comms->names, comms->names->by_age);
    }
}
