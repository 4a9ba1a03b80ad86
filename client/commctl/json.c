#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "client/commctl/commctl.h"

static json_t *json_of_bytes(const ProtobufCBinaryData *bytes)
{
    char text[2 * 64 + 1] = "";
    for (size_t i = 0; i < bytes->len && i < sizeof text / 2; i++) {
        (void)snprintf(text + 2 * i, 3, "%02x", bytes->data[i]);
    }
    return json_string(text);
}

static json_t *json_of_field(const ProtobufCFieldDescriptor *field, const char *place)
{
    switch (field->type) {
    case PROTOBUF_C_TYPE_STRING:
        return json_string(*(char *const *)place);
    case PROTOBUF_C_TYPE_BOOL:
        return json_boolean(*(const protobuf_c_boolean *)place);
    case PROTOBUF_C_TYPE_INT32:
    case PROTOBUF_C_TYPE_SINT32:
    case PROTOBUF_C_TYPE_SFIXED32:
    case PROTOBUF_C_TYPE_ENUM:
        return json_integer(*(const int32_t *)place);
    case PROTOBUF_C_TYPE_UINT32:
    case PROTOBUF_C_TYPE_FIXED32:
        return json_integer(*(const uint32_t *)place);
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_SINT64:
    case PROTOBUF_C_TYPE_SFIXED64:
    case PROTOBUF_C_TYPE_UINT64:
        return json_integer(*(const int64_t *)place);
    case PROTOBUF_C_TYPE_FIXED64: /* identities: JSON's numbers are doubles to most readers */
        return json_sprintf("%016llx", *(const unsigned long long *)place);
    case PROTOBUF_C_TYPE_FLOAT:
        return json_real((double)*(const float *)place);
    case PROTOBUF_C_TYPE_DOUBLE:
        return json_real(*(const double *)place);
    case PROTOBUF_C_TYPE_MESSAGE:
        return json_of_message(*(ProtobufCMessage *const *)place);
    case PROTOBUF_C_TYPE_BYTES:
        return json_of_bytes((const ProtobufCBinaryData *)(const void *)place);
    }
    return json_null();
}

json_t *json_of_message(const ProtobufCMessage *message)
{
    json_t *object = json_object();
    if (message == NULL) {
        return object;
    }
    for (unsigned i = 0; i < message->descriptor->n_fields; i++) {
        const ProtobufCFieldDescriptor *field = &message->descriptor->fields[i];
        const char *place = (const char *)message + field->offset;
        json_t *value;
        if (field->label == PROTOBUF_C_LABEL_REPEATED) {
            value = json_array();
            size_t count = *(const size_t *)((const char *)message + field->quantifier_offset);
            const char *elements = *(char *const *)place;
            size_t step = field->type == PROTOBUF_C_TYPE_UINT32 ? sizeof(uint32_t) : sizeof(void *);
            for (size_t element = 0; element < count; element++) {
                json_array_append_new(value, json_of_field(field, elements + element * step));
            }
        } else {
            value = json_of_field(field, place);
        }
        json_object_set_new(object, field->name, value);
    }
    return object;
}

void output_object(const struct commctl *commctl, json_t *object, void (*text)(const json_t *object))
{
    if (commctl->json || text == NULL) {
        json_object_set_new(object, "schema_version", json_integer(COMMCTL_SCHEMA_VERSION));
        size_t layout = commctl->watch_s > 0 ? JSON_COMPACT : JSON_INDENT(2);
        json_dumpf(object, stdout, layout | JSON_SORT_KEYS);
        putchar('\n');
    } else {
        text(object);
    }
    json_decref(object);
}

enum exit_code output_finish(enum exit_code code)
{
    bool failed = ferror(stdout) != 0;
    if (fflush(stdout) == 0 && !failed) {
        return code;
    }
    fprintf(stderr, "commctl: the output cannot be written: %s\n", strerror(errno));
    return code == EXIT_CODE_OK || code == EXIT_CODE_DEGRADED ? EXIT_CODE_FAILURE : code;
}
