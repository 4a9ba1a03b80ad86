#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "daemon/comm/text.h"
#include "proto/types.h"

#define TEXT_ELLIPSIS "\xe2\x80\xa6"

const char *comms_text_without_name(const char *name, const char *text)
{
    char prefix[COMM_NAME_MAX_BYTES + 24];
    int length = snprintf(prefix, sizeof prefix, "communicator \"%s\"", name);
    if (length < 0 || strncmp(text, prefix, (size_t)length) != 0) {
        return text;
    }
    text += length;
    return text + strspn(text, ": ");
}

void comms_text_begin(struct comms_text *text, char *out, size_t size)
{
    *text = (struct comms_text){.out = out, .size = size};
    out[0] = '\0';
}

void comms_text_continue(struct comms_text *text, char *out, size_t size)
{
    size_t length = strnlen(out, size - 1);
    size_t mark = sizeof TEXT_ELLIPSIS - 1;
    *text = (struct comms_text){.out = out, .size = size, .length = length};
    text->cut = length >= mark && memcmp(out + length - mark, TEXT_ELLIPSIS, mark) == 0;
}

void comms_text_add(struct comms_text *text, const char *format, ...)
{
    if (text->cut) {
        return;
    }
    if (text->length + sizeof TEXT_ELLIPSIS > text->size) {
        text->cut = true; /* it is full, with an ellipsis at its end */
        return;
    }
    /* Room for the ellipsis is kept. */
    size_t room = text->size - text->length - sizeof TEXT_ELLIPSIS;
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(text->out + text->length, room + 1, format, arguments);
    va_end(arguments);
    if (length < 0 || (size_t)length > room) {
        memcpy(text->out + text->length, TEXT_ELLIPSIS, sizeof TEXT_ELLIPSIS);
        text->cut = true;
    } else {
        text->length += (size_t)length;
    }
}

static bool bit(const uint8_t *bits, uint32_t at)
{
    return (bits[at / 8] >> (at % 8) & 1) != 0;
}

void comms_text_add_ranks(struct comms_text *text, const uint8_t *bits, uint32_t size, bool set)
{
    const char *separator = "";
    for (uint32_t first = 0; first < size && !text->cut; first++) {
        if (bit(bits, first) != set) {
            continue;
        }
        uint32_t last = first;
        while (last + 1 < size && bit(bits, last + 1) == set) {
            last++;
        }
        if (first == last) {
            comms_text_add(text, "%s%u", separator, first);
        } else {
            comms_text_add(text, "%s%u-%u", separator, first, last);
        }
        separator = ", ";
        first = last;
    }
}
