#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#include "daemon/req/req_internal.h"

/* A name that was used, of one user. */
struct req_name {
    struct req_name *prev, *next; /* of the user's, used longest ago first */
    uint32_t generation;
    struct req_key key;
    UT_hash_handle hh;
};

/* A user's names. */
struct req_names {
    uint32_t owner_uid;
    uint32_t count;
    struct req_name *by_key;
    struct req_name *by_age;
    UT_hash_handle hh;
};

size_t req_key_make(struct req_key *key, uid_t owner_uid, const char *name)
{
    size_t name_bytes = strnlen(name, sizeof key->name - 1);
    key->owner_uid = owner_uid;
    memcpy(key->name, name, name_bytes);
    key->name[name_bytes] = '\0';
    return offsetof(struct req_key, name) + name_bytes;
}

static void name_forget(struct req *req, struct req_names *names, struct req_name *name)
{
    HASH_DEL(names->by_key, name);
    DL_DELETE(names->by_age, name);
    free(name);
    names->count--;
    req->name_count--;
    if (names->count == 0) {
        HASH_DEL(req->names, names);
        free(names);
    }
}

static void forget_of_largest(struct req *req)
{
    struct req_names *names, *next, *largest = NULL;
    HASH_ITER (hh, req->names, names, next) {
        largest = largest == NULL || names->count > largest->count ? names : largest;
    }
    if (largest != NULL) {
        name_forget(req, largest, largest->by_age);
    }
}

static struct req_names *names_of(struct req *req, uint32_t owner_uid)
{
    struct req_names *names;
    HASH_FIND(hh, req->names, &owner_uid, sizeof owner_uid, names);
    return names;
}

/* Null without memory: the name is not remembered then. */
static struct req_name *name_new(struct req *req, uint32_t owner_uid, const char *text)
{
    struct req_name *name = calloc(1, sizeof *name);
    if (name == NULL) {
        return NULL;
    }
    if (req->name_count >= REQ_NAMES_MAX) {
        forget_of_largest(req);
    }
    struct req_names *names = names_of(req, owner_uid);
    if (names == NULL) {
        names = calloc(1, sizeof *names);
        if (names == NULL) {
            free(name);
            return NULL;
        }
        names->owner_uid = owner_uid;
        HASH_ADD(hh, req->names, owner_uid, sizeof names->owner_uid, names);
        if (!table_has(names, hh)) {
            free(names);
            free(name);
            return NULL;
        }
    } else if (names->count >= REQ_NAMES_OF_USER_MAX) {
        name_forget(req, names, names->by_age);
    }
    size_t key_bytes = req_key_make(&name->key, owner_uid, text);
    HASH_ADD(hh, names->by_key, key, key_bytes, name);
    if (!table_has(name, hh)) {
        free(name);
        if (names->count == 0) {
            HASH_DEL(req->names, names);
            free(names);
        }
        return NULL;
    }
    DL_APPEND(names->by_age, name);
    names->count++;
    req->name_count++;
    return name;
}

uint32_t req_names_next_generation(struct req *req, uid_t owner_uid, const char *text)
{
    struct req_names *names = names_of(req, owner_uid);
    struct req_name *name = NULL;
    if (names != NULL) {
        struct req_key key;
        size_t key_bytes = req_key_make(&key, owner_uid, text);
        HASH_FIND(hh, names->by_key, &key, key_bytes, name);
    }
    if (name != NULL) {
        DL_DELETE(names->by_age, name);
        DL_APPEND(names->by_age, name);
    } else {
        name = name_new(req, owner_uid, text);
    }
    return name != NULL ? ++name->generation : 1;
}

void req_names_free(struct req *req)
{
    while (req->names != NULL) {
        name_forget(req, req->names, req->names->by_age);
    }
}
