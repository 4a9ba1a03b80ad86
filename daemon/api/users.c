#include <stdio.h>
#include <stdlib.h>

#include "daemon/api/session.h"

/* commctl users: what each account holds (daemon/base/budget.h). */

#define USERS_PAGE_MAX_BYTES (CLIENT_PACKET_MAX_BYTES - 4096)

struct users_row {
    Commd__Client__UserInfo info;
    char group[BUDGET_GROUP_MAX_BYTES + 1];
    Commd__Client__UserUse uses[BUDGET_KINDS];
    Commd__Client__UserUse *pointers[BUDGET_KINDS];
};

struct users {
    const struct api_session *session; /* the session that asks */
    uint64_t after;
    size_t page_bytes;
    Commd__Client__UsersReply answer;
    struct users_row rows[CLIENT_LIST_PAGE_MAX];
    Commd__Client__UserInfo *pointers[CLIENT_LIST_PAGE_MAX];
};

/* Users choose the names of their control groups, so only printable text is copied. */
static void copy_group(char out[BUDGET_GROUP_MAX_BYTES + 1], const char *group)
{
    (void)snprintf(out, BUDGET_GROUP_MAX_BYTES + 1, "%s", group);
    for (char *byte = out; *byte != '\0'; byte++) {
        if (*byte < ' ' || *byte > '~') {
            *byte = '?';
        }
    }
}

static void fill_row(struct users_row *row, uint64_t number, const struct budget_info *info)
{
    commd__client__user_info__init(&row->info);
    copy_group(row->group, info->group);
    row->info.id = number;
    row->info.uid = info->uid;
    row->info.group = row->group;
    row->info.shares_uid = info->shares_uid;
    row->info.loop_us = info->spent_ns / TIME_US;
    row->info.refused = info->refused;
    row->info.uses = row->pointers;
    for (int kind = 0; kind < BUDGET_KINDS; kind++) {
        Commd__Client__UserUse *use = &row->uses[kind];
        commd__client__user_use__init(use);
        use->kind = (char *)budget_kind_key((enum budget_kind)kind);
        use->used = info->used[kind];
        use->ceiling = info->ceiling[kind];
        row->pointers[row->info.n_uses++] = use;
    }
}

static bool visit_account(void *context, uint64_t number, const struct budget_info *info)
{
    struct users *users = context;
    Commd__Client__UsersReply *answer = &users->answer;
    if (!api_session_sees(users->session, info->uid)) {
        answer->others++;
        return true;
    }
    if (number <= users->after) {
        return true;
    }
    size_t bytes = 0;
    if (answer->n_users < CLIENT_LIST_PAGE_MAX) {
        struct users_row *row = &users->rows[answer->n_users];
        fill_row(row, number, info);
        bytes = commd__client__user_info__get_packed_size(&row->info) + 8;
    }
    if (bytes == 0 || users->page_bytes + bytes > USERS_PAGE_MAX_BYTES) {
        answer->cursor = users->pointers[answer->n_users - 1]->id; /* a row is far smaller than a page */
        return false;
    }
    users->page_bytes += bytes;
    users->pointers[answer->n_users] = &users->rows[answer->n_users].info;
    answer->n_users++;
    return true;
}

void api_users(struct api_session *session, uint64_t request_id, uint64_t after)
{
    struct users *users = calloc(1, sizeof *users);
    if (users == NULL) {
        api_session_reply_failure(session, request_id, STATUS_NO_MEMORY, "no memory for the list of users");
        return;
    }
    users->session = session;
    users->after = after;
    commd__client__users_reply__init(&users->answer);
    users->answer.users = users->pointers;
    /* Starts at the first account, because the accounts of other users are counted on each page. */
    budget_visit_accounts(session->api->budget, 0, visit_account, users);
    Commd__Client__Reply reply = API_REPLY(request_id, USERS, users, &users->answer);
    api_session_reply(session, &reply);
    free(users);
}
