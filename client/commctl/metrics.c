#include <stdio.h>
#include <string.h>

#include "client/commctl/commctl.h"

/* commctl metrics: all metrics as text, users and communicators by name included. For administrators. */

static const char usage[] = "usage: commctl metrics [--open-metrics]\n";

enum exit_code verb_metrics(struct commctl *commctl, int argc, char **argv)
{
    Commd__Client__MetricsQuery query = COMMD__CLIENT__METRICS_QUERY__INIT;
    Commd__Client__Request request = COMMD__CLIENT__REQUEST__INIT;
    enum exit_code code;
    query.open_metrics = argc == 2 && strcmp(argv[1], "--open-metrics") == 0;
    if (argc > 2 || (argc == 2 && !query.open_metrics)) {
        return usage_wrong("metrics", argv[argc - 1], NULL, "no argument, or --open-metrics", usage);
    }
    request.body_case = COMMD__CLIENT__REQUEST__BODY_METRICS;
    request.metrics = &query;
    do {
        Commd__Client__Event *event;
        code = connection_request(commctl, &request, &event);
        if (code == EXIT_CODE_OK && event->reply->body_case == COMMD__CLIENT__REPLY__BODY_METRICS) {
            const Commd__Client__MetricsReply *page = event->reply->metrics;
            (void)fwrite(page->text.data, 1, page->text.len, stdout);
            query.offset = page->cursor;
        } else {
            query.offset = 0;
        }
        commd__client__event__free_unpacked(event, NULL);
    } while (query.offset != 0);
    return code;
}
