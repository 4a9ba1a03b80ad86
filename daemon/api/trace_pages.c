#include "daemon/base/trace.h"

#include <stdlib.h>

#include "daemon/api/session.h"

/* commctl trace: pages of the latest records (daemon/base/trace.h). */

#define TRACE_PAGE_RECORDS 1000u /* they fit into a packet, with CLIENT_LIST_PAGE_MAX names */
#define TRACE_PAGE_LOOKS 4096u   /* records that are checked; some may be another user's, or too old */
_Static_assert(TRACE_PAGE_RECORDS * sizeof(struct trace_record) +
                       CLIENT_LIST_PAGE_MAX * (sizeof(struct trace_comm_name) + 16) <
                   CLIENT_PACKET_MAX_BYTES - 1024,
               "a page fits into a packet");

struct page {
    const struct api_session *session; /* the session that asks */
    struct trace_record records[TRACE_PAGE_RECORDS];
    size_t count;
    bool skipped;     /* records before the next one were overwritten */
    uint64_t last_id; /* of the last record, and its name */
    const struct trace_comm_name *last_name;
    Commd__Client__TraceComm comms[CLIENT_LIST_PAGE_MAX];
    Commd__Client__TraceComm *pointers[CLIENT_LIST_PAGE_MAX];
    Commd__Client__TraceReply answer;
};

/* Keeps the name for the page. Returns false if the page has no room for another name. */
static bool page_name(struct page *page, const struct trace_comm_name *name)
{
    Commd__Client__TraceReply *answer = &page->answer;
    for (size_t i = answer->n_comms; name != NULL && i > 0; i--) {
        if (page->comms[i - 1].comm_id == name->comm_id) {
            return true;
        }
    }
    if (name == NULL || answer->n_comms == CLIENT_LIST_PAGE_MAX) {
        return name == NULL;
    }
    Commd__Client__TraceComm *row = &page->comms[answer->n_comms];
    commd__client__trace_comm__init(row);
    row->comm_id = name->comm_id;
    row->name = (char *)name->name;
    page->pointers[answer->n_comms++] = row;
    return true;
}

/* Leaves out what was recorded before a gap. Which operations ended in the gap is not known. */
static void page_cut(struct page *page)
{
    page->count = 0;
    page->answer.cut = true;
}

/* Returns false if the page is full; the record then belongs to the next page. */
static bool page_add(struct page *page, const struct trace_record *record, uint64_t since_ns)
{
    if (page->last_id != record->comm_id || page->last_name == NULL) {
        page->last_id = record->comm_id;
        page->last_name = trace_comm_find(record->comm_id);
    }
    const struct trace_comm_name *name = page->last_name;
    bool admin = page->session->role == API_ROLE_ADMIN;
    bool after_gap = page->skipped;
    page->skipped = false;
    if (record->time_ns < since_ns) {
        return true;
    }
    if (after_gap) {
        page_cut(page);
    }
    if (!admin && (name == NULL || !api_session_sees(page->session, name->owner_uid))) {
        page->answer.others++;
        return true;
    }
    if (page->count == TRACE_PAGE_RECORDS || !page_name(page, name)) {
        return false;
    }
    page->records[page->count++] = *record;
    return true;
}

static void page_fill(struct page *page, const Commd__Client__TraceQuery *request)
{
    uint64_t next = request->next;
    uint64_t end = request->end != 0 ? request->end : trace_end();
    struct trace_record record;
    for (uint32_t looks = 0; looks < TRACE_PAGE_LOOKS && next < end; looks++) {
        uint64_t asked = next;
        size_t came = trace_read(&next, end, &record, 1);
        bool overwritten = came == 0 && trace_end() > asked + TRACE_RECORDS_MAX;
        page->skipped = page->skipped || overwritten || next > asked + 1;
        if (came == 1 && !page_add(page, &record, request->since_ns)) {
            next--; /* for the next page */
            break;
        }
    }
    if (page->skipped) {
        page_cut(page);
    }
    page->answer.cursor = next < end ? next : 0;
    page->answer.end = end;
}

/* Turns recording on for the session. It stays on for other sessions. */
static enum status record_for(struct api_session *session, struct error *error)
{
    struct api *api = session->api;
    if (session->role != API_ROLE_ADMIN) {
        return error_set(error, STATUS_PERMISSION,
                         "only administrators turn a trace on (commctl trace as root or a member of "
                         "admin_group, or " TRACE_ENVIRONMENT " in commd's environment)");
    }
    if (session->traces) {
        return STATUS_OK;
    }
    unsigned before = atomic_load(&trace_areas);
    if (trace_begin(TRACE_AREAS_ALL, error) != STATUS_OK) {
        return STATUS_NO_MEMORY;
    }
    api->traced_before = api->tracing_sessions++ == 0 ? before : api->traced_before;
    session->traces = true;
    return STATUS_OK;
}

void api_trace_forget(struct api_session *session)
{
    struct error error;
    if (session->traces && --session->api->tracing_sessions == 0) {
        enum status status = trace_begin(session->api->traced_before, &error);
        (void)status; /* the memory is already there */
    }
    session->traces = false;
}

void api_trace(struct api_session *session, uint64_t request_id, const Commd__Client__TraceQuery *request)
{
    struct error error;
    unsigned areas = atomic_load(&trace_areas);
    if (request->record && record_for(session, &error) != STATUS_OK) {
        api_session_reply_error(session, request_id, &error);
        return;
    }
    if (!request->record) {
        api_trace_forget(session); /* so that nothing overwrites what it reads */
    }
    struct page *page = calloc(1, sizeof *page);
    if (page == NULL) {
        api_session_reply_failure(session, request_id, STATUS_NO_MEMORY, "no memory for a page of the trace");
        return;
    }
    page->session = session;
    commd__client__trace_reply__init(&page->answer);
    page_fill(page, request);
    page->answer.records.data = (uint8_t *)page->records;
    page->answer.records.len = page->count * sizeof page->records[0];
    page->answer.comms = page->pointers;
    page->answer.now_ns = loop_now_ns();
    page->answer.areas = areas;
    page->answer.node_name = (char *)mesh_own_name(session->api->mesh);
    Commd__Client__Reply reply = API_REPLY(request_id, TRACE, trace, &page->answer);
    api_session_reply(session, &reply);
    free(page);
}
