#ifndef DAEMON_CONF_SETTING_TYPE_H
#define DAEMON_CONF_SETTING_TYPE_H

/* What the values of settings may be. Used only in daemon/conf. */

enum setting_type {
    SETTING_TEXT,
    SETTING_PATH,          /* may hold "%n", the node's name: node_path.h */
    SETTING_OPTIONAL_PATH, /* likewise, or empty */
    SETTING_NODE_NAME,
    SETTING_ADDRESS,
    SETTING_SERVICE, /* a name in DNS, or empty */
    SETTING_RAIL_ADDRESSES,
    SETTING_MODE,
    SETTING_LEVEL,
    SETTING_GPUS,
    SETTING_GPU_ENGINE,
    SETTING_SWITCH,
    SETTING_NCCL_REGISTER,
    SETTING_GPU_TUNING,
    SETTING_BULK_LINKS,
    SETTING_IPC_HANDLES,
    SETTING_GROUP,
    SETTING_METRICS,
    SETTING_NUMBER
};

/* Returns null if the text is a value of the type, otherwise what was expected. SETTING_NUMBER has no texts.
 */
const char *conf_setting_expected(enum setting_type type, const char *text);

#endif
