#include "daemon/mesh/expiry.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "daemon/base/history.h"
#include "daemon/base/log.h"
#include "proto/types.h"

#define DAY_S 86400u

static bool ends_soon(const struct expiry_certificate *certificate, uint64_t now_s)
{
    return certificate->ends_s != 0 && certificate->ends_s < now_s + (uint64_t)EXPIRY_WARN_DAYS * DAY_S;
}

/* Also warns if the clock was set back. */
static bool is_due(uint64_t *warned_s, uint64_t now_s)
{
    if (*warned_s != 0 && now_s >= *warned_s && now_s - *warned_s < DAY_S) {
        return false;
    }
    *warned_s = now_s;
    return true;
}

static void warn_own(const struct expiry_certificate *own, uint64_t now_s)
{
    char day[16] = "?";
    struct tm parts;
    time_t ends = (time_t)own->ends_s;
    if (gmtime_r(&ends, &parts) != NULL) {
        (void)strftime(day, sizeof day, "%Y-%m-%d", &parts);
    }
    struct history_about about = {
        .kind = HISTORY_CERTIFICATE, .audience = HISTORY_FOR_ALL, .subject = own->name};
    history_add(&about, "%s on %s: renew it", own->ends_s <= now_s ? "ended" : "ends", day);
    if (own->ends_s <= now_s) {
        log_warning("the certificate of node %s ended on %s: no new connection can be made; renew it "
                    "(commctl pki renew) and reload",
                    own->name, day);
    } else {
        log_warning(
            "the certificate of node %s ends in %llu days, on %s: renew it (commctl pki renew) and reload",
            own->name, (unsigned long long)((own->ends_s - now_s) / DAY_S), day);
    }
}

static int compare(const void *left, const void *right)
{
    const struct expiry_certificate *a = left;
    const struct expiry_certificate *b = right;
    return (a->ends_s > b->ends_s) - (a->ends_s < b->ends_s);
}

static void warn_others(struct expiry_certificate *others, size_t count, size_t soon, uint64_t now_s)
{
    char names[EXPIRY_NAMES_MAX * (NODE_NAME_MAX_BYTES + 24)] = "";
    size_t used = 0;
    size_t named = 0;
    qsort(others, count, sizeof *others, compare); /* unknown times, 0, come first */
    for (size_t i = 0; i < count && named < EXPIRY_NAMES_MAX && named < soon; i++) {
        if (!ends_soon(&others[i], now_s)) {
            continue;
        }
        bool ended = others[i].ends_s <= now_s;
        int length =
            ended ? snprintf(names + used, sizeof names - used, "%s%s (ended)", named == 0 ? "" : ", ",
                             others[i].name)
                  : snprintf(names + used, sizeof names - used, "%s%s (%llu days)", named == 0 ? "" : ", ",
                             others[i].name, (unsigned long long)((others[i].ends_s - now_s) / DAY_S));
        used += length > 0 && (size_t)length < sizeof names - used ? (size_t)length : 0;
        named++;
    }
    struct history_about about = {.kind = HISTORY_CERTIFICATE, .audience = HISTORY_FOR_ALL};
    history_add(&about, "%zu other nodes' certificates end within %d days: %s%s", soon, EXPIRY_WARN_DAYS,
                names, soon > named ? ", ..." : "");
    log_warning("the certificates of %zu other nodes, as they showed them when they connected, end within %d "
                "days: %s%s",
                soon, EXPIRY_WARN_DAYS, names, soon > named ? ", ..." : "");
}

void expiry_check(struct expiry *expiry, const struct expiry_certificate *own,
                  struct expiry_certificate *others, size_t count, uint64_t now_s)
{
    size_t soon = 0;
    if (ends_soon(own, now_s) && is_due(&expiry->own_warned_s, now_s)) {
        warn_own(own, now_s);
    }
    for (size_t i = 0; i < count; i++) {
        soon += ends_soon(&others[i], now_s);
    }
    if (soon > 0 && is_due(&expiry->others_warned_s, now_s)) {
        warn_others(others, count, soon, now_s);
    }
}
