#ifndef DAEMON_COMM_TEXT_H
#define DAEMON_COMM_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/base/printable.h"

/* Texts about communicators, and lists that grow part by part in a fixed place. */

/* The text without its beginning "communicator \"name\":", if it begins so. */
const char *comms_text_without_name(const char *name, const char *text);
struct comms_text {
    char *out;
    size_t size;
    size_t length;
    bool cut;
};
/* comms_text_add appends. Once a part does not fit, the text ends with "…" and takes no more. size is at
 * least 8. */
void comms_text_begin(struct comms_text *text, char *out, size_t size);
/* Goes on with a text that was written in this way before. If it was cut, it takes no more. */
void comms_text_continue(struct comms_text *text, char *out, size_t size);
void comms_text_add(struct comms_text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Appends the numbers below size whose bit equals `set`: "3, 5-7". */
void comms_text_add_ranks(struct comms_text *text, const uint8_t *bits, uint32_t size, bool set);

#endif
