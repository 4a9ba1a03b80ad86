#include "daemon/conf/setting_type.h"

#include <grp.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/log.h"
#include "daemon/conf/address.h"
#include "daemon/conf/metrics_address.h"
#include "daemon/conf/node_list.h"
#include "daemon/conf/rail_addresses.h"

static bool mode_is_valid(const char *text)
{
    size_t digits = strspn(text, "01234567");
    return digits > 0 && digits <= 4 && text[digits] == '\0' && strtoul(text, NULL, 8) <= 0777;
}

static bool is_one_of(const char *text, const char *one, const char *two, const char *three)
{
    return strcmp(text, one) == 0 || strcmp(text, two) == 0 || strcmp(text, three) == 0;
}

const char *conf_setting_expected(enum setting_type type, const char *text)
{
    enum log_level level;
    switch (type) {
    case SETTING_TEXT:
    case SETTING_OPTIONAL_PATH:
        return NULL;
    case SETTING_PATH:
        return *text != '\0' ? NULL : "a file's path";
    case SETTING_NODE_NAME:
        return conf_node_name_expected(text);
    case SETTING_ADDRESS:
        return conf_address_expected(text);
    case SETTING_SERVICE:
        return *text == '\0' || conf_service_name_is_valid(text)
                   ? NULL
                   : "a name in DNS, such as \"_commd._udp.cluster.example\"";
    case SETTING_RAIL_ADDRESSES:
        return conf_rail_addresses_expected(text);
    case SETTING_MODE:
        return mode_is_valid(text) ? NULL : "file permissions in octal, as \"0660\"";
    case SETTING_GPUS:
        return strcmp(text, "auto") != 0 && strcmp(text, "off") != 0 ? "auto or off" : NULL;
    case SETTING_NCCL_REGISTER:
        return is_one_of(text, "off", "on", "windows") ? NULL : "off, on or windows";
    case SETTING_SWITCH:
        return strcmp(text, "on") != 0 && strcmp(text, "off") != 0 ? "on or off" : NULL;
    case SETTING_GPU_ENGINE:
        return is_one_of(text, "auto", "nccl", "kernels") ? NULL : "auto, nccl or kernels";
    case SETTING_GPU_TUNING:
        return strcmp(text, "auto") != 0 && strcmp(text, "off") != 0 && text[0] != '/'
                   ? "auto, off or a file's path from /"
                   : NULL;
    case SETTING_BULK_LINKS:
        return is_one_of(text, "auto", "quic", "tls") ? NULL : "auto, quic or tls";
    case SETTING_IPC_HANDLES:
        return is_one_of(text, "auto", "accept", "refuse") ? NULL : "auto, accept or refuse";
    case SETTING_GROUP:
        return *text == '\0' || getgrnam(text) != NULL ? NULL : "the name of a group on this node";
    case SETTING_METRICS:
        return conf_metrics_expected(text);
    case SETTING_LEVEL:
        return log_level_from_text(text, &level) ? NULL : "error, warning, info or debug";
    case SETTING_NUMBER:
        break;
    }
    return NULL;
}
