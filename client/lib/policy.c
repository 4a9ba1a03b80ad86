#include "client/lib/policy.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

comm_result_t policy_check(const comm_init_options_t *options, const char *call, const char *name)
{
    if (options->on_loss != COMM_ON_LOSS_RETURN && options->on_loss != COMM_ON_LOSS_ABORT) {
        return error_report(COMM_INVALID_ARGUMENT,
                            "%s: \"%s\": on_loss is %d: expected COMM_ON_LOSS_RETURN or COMM_ON_LOSS_ABORT",
                            call, name, options->on_loss);
    }
    if (options->reserved != 0) {
        return error_report(COMM_INVALID_ARGUMENT,
                            "%s: \"%s\": reserved is %d: expected 0 (COMM_INIT_OPTIONS_INIT)", call, name,
                            options->reserved);
    }
    return COMM_OK;
}

void policy_lost(const struct comm_comm *comm, comm_result_t result, const char *text)
{
    bool formed = comm->comm_id != 0;
    if (comm->options.on_loss != COMM_ON_LOSS_ABORT || !formed || comm->leaving || comm->aborting) {
        return;
    }
    char line[ERROR_TEXT_BYTES + COMM_NAME_MAX_BYTES + 128];
    int length = snprintf(line, sizeof line, "libcommclient: rank %u of \"%s\" aborts the process: %s: %s\n",
                          comm->rank, comm->name, comm_result_text(result), text);
    if (length > 0) {
        size_t size_bytes = (size_t)length < sizeof line ? (size_t)length : sizeof line - 1;
        ssize_t written = write(STDERR_FILENO, line, size_bytes); /* one call: ranks share the terminal */
        (void)written;
    }
    abort();
}
