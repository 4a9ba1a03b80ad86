#include "daemon/service.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <systemd/sd-bus.h>

#define SYSTEMD "org.freedesktop.systemd1"

/* Returns the path of the unit's job, in `out`; false if there is none. */
static bool find_job(sd_bus *bus, char out[256])
{
    sd_bus_message *unit = NULL, *job = NULL;
    const char *path = NULL, *job_path = NULL;
    uint32_t number = 0;
    bool found = sd_bus_call_method(bus, SYSTEMD, "/org/freedesktop/systemd1", SYSTEMD ".Manager",
                                    "GetUnitByPID", NULL, &unit, "u", (uint32_t)0) >= 0 && /* 0: the caller */
                 sd_bus_message_read(unit, "o", &path) >= 0 &&
                 sd_bus_get_property(bus, SYSTEMD, path, SYSTEMD ".Unit", "Job", NULL, &job, "(uo)") >= 0 &&
                 sd_bus_message_read(job, "(uo)", &number, &job_path) >= 0 && number != 0 &&
                 strlen(job_path) < 256;
    if (found) {
        strcpy(out, job_path);
    }
    sd_bus_message_unref(job);
    sd_bus_message_unref(unit);
    return found;
}

bool service_is_restarting(void)
{
    sd_bus *bus = NULL;
    char path[256];
    char *type = NULL;
    bool restarts = false;
    if (getenv("INVOCATION_ID") == NULL || sd_bus_open_system(&bus) < 0) {
        return false; /* no unit, or no bus */
    }
    (void)sd_bus_set_method_call_timeout(bus, SERVICE_WAIT_MS * UINT64_C(1000));
    if (find_job(bus, path) &&
        sd_bus_get_property_string(bus, SYSTEMD, path, SYSTEMD ".Job", "JobType", NULL, &type) >= 0) {
        restarts = strcmp(type, "restart") == 0 || strcmp(type, "try-restart") == 0;
    }
    free(type);
    sd_bus_unref(bus);
    return restarts;
}
