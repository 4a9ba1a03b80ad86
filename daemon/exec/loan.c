#include <sched.h>

#include "daemon/base/time.h"
#include "daemon/exec/rails_internal.h"

/* Stage steps that one thread lends to another. */

void exec_serve(struct exec *exec, const struct budget_account *account, uint64_t now_ns)
{
    if (exec->last_user.account != account) {
        exec->other_user = exec->last_user;
        exec->last_user.account = account;
    }
    exec->last_user.served_ns = now_ns;
}

bool exec_lends(const struct exec_comm *comm)
{
    const struct exec *exec = comm->exec;
    const struct exec_user *other =
        exec->last_user.account != comm->map->account ? &exec->last_user : &exec->other_user;
    return exec->rails != NULL && exec->rails->count > exec->rails->network_count && other->account != NULL &&
           exec->now_ns - other->served_ns < EXEC_SHARED_NS;
}

/* --- The borrower --- */

static void loan_is_back(void *context, uint64_t now_ns)
{
    struct exec_loan *loan = context;
    (void)now_ns;
    loan->is_out = false;
    loan->is_done = true;
    exec_wake(loan->lane->comm->exec);
}

bool loans_run(struct exec *exec)
{
    struct fair_entry *turn = fair_take(&exec->loans);
    if (turn == NULL) {
        return false;
    }
    struct exec_loan *loan = (struct exec_loan *)((char *)turn - offsetof(struct exec_loan, turn));
    const struct exec_comm *comm = loan->lane->comm;
    uint64_t left_bytes = EXEC_TURN_BYTES;
    spending_turn(&exec->spending, comm->map->account);
    if (stage_run(loan->lane, loan->op, loan->step, loan->slice, &loan->cursor, &left_bytes)) {
        loan->mail.deliver = loan_is_back;
        mailbox_put(rails_mailbox(comm->exec->rails, 0), &loan->mail); /* belongs to the lender from now on */
    } else {
        fair_put(&exec->loans, turn, comm->map->owner_uid);
    }
    spending_turn(&exec->spending, NULL);
    return exec->loans.count > 0;
}

static void loan_begins(void *context, uint64_t now_ns)
{
    struct exec_loan *loan = context;
    (void)now_ns;
    fair_put(&loan->borrower->loans, &loan->turn, loan->lane->comm->map->owner_uid);
}

/* --- The lender --- */

static void lend(struct exec_loan *loan)
{
    struct exec *exec = loan->lane->comm->exec;
    struct rails *rails = exec->rails;
    uint32_t borrower = rails->network_count + exec->lent++ % (rails->count - rails->network_count);
    loan->borrower = rails->execs[borrower];
    loan->is_out = true;
    loan->mail.deliver = loan_begins;
    loan->mail.context = loan;
    mailbox_put(rails_mailbox(rails, borrower), &loan->mail);
}

bool loan_run_stage(struct exec_loan *loan, struct exec_lane *lane, enum coll_stage_step step, uint64_t slice,
                    struct coll_stage_cursor *cursor, uint64_t *left_bytes)
{
    struct exec_comm *comm = lane->comm;
    if (loan->is_out) {
        return false;
    }
    if (loan->is_done) {
        loan->is_done = false;
        return true;
    }
    bool lends = !lane->staged && exec_lends(comm);
    uint64_t most_bytes = lends ? comm->exec->lend_after_bytes : EXEC_TURN_BYTES;
    uint64_t here_bytes = *left_bytes < most_bytes ? *left_bytes : most_bytes;
    uint64_t unused_bytes = here_bytes;
    bool over = here_bytes > 0 && stage_run(lane, comm->first_op, step, slice, cursor, &unused_bytes);
    *left_bytes -= here_bytes - unused_bytes;
    if (!over && lends) {
        loan->lane = lane;
        loan->op = comm->first_op;
        loan->step = step;
        loan->slice = slice;
        loan->cursor = *cursor;
        lend(loan);
    } else if (!over) {
        exec_wake(comm->exec);
    }
    return over;
}

bool loans_are_back(const struct exec_comm *comm)
{
    bool back = !comm->exchange_loan.is_out;
    for (uint32_t i = 0; i < EXEC_LANES_MAX; i++) {
        back &= !comm->lanes[i].loan.is_out;
    }
    return back;
}

static bool any_is_out(const struct exec *exec)
{
    const struct exec_comm *comm, *next;
    bool any = false;
    HASH_ITER (hh, exec->comms, comm, next) {
        any |= !loans_are_back(comm);
    }
    return any;
}

void exec_await_loans(struct exec *exec, uint64_t now_ns)
{
    while (any_is_out(exec)) {
        (void)mailbox_run(rails_mailbox(exec->rails, 0), now_ns);
        (void)sched_yield();
    }
}
