#include "daemon/coll/overrides.h"

#include <stdio.h>
#include <string.h>

#include "daemon/base/checked.h"

#define WORD_SIGNS "abcdefghijklmnopqrstuvwxyz_"
#define NODES_WORD "nodes"
#define FOUND_MAX_CHARACTERS 24

struct overrides_parser {
    const char *text;
    const char *at;
    bool has_kind; /* of an earlier rule */
    enum op_kind kind;
};

/* --- Errors --- */

/* INVALID_ARGUMENT: the text at `at`, and what was expected there. */
static enum status overrides_expected(const struct overrides_parser *parser, const char *at,
                                      const char *expected, struct error *error)
{
    size_t length = strcspn(at, ",;= \t");
    length = length == 0 && *at != '\0' ? 1 : length;
    length = length > FOUND_MAX_CHARACTERS ? FOUND_MAX_CHARACTERS : length;
    char found[FOUND_MAX_CHARACTERS + 3] = "the end";
    if (*at != '\0') {
        snprintf(found, sizeof found, "\"%.*s\"", (int)length, at);
    }
    return error_set(error, STATUS_INVALID_ARGUMENT, "algorithms, at character %zu: expected %s, found %s",
                     (size_t)(at - parser->text) + 1, expected, found);
}

/* "an algorithm of all_reduce (ring, direct, ...)" */
static enum status overrides_expected_algorithm(const struct overrides_parser *parser, const char *at,
                                                struct error *error)
{
    char text[ERROR_TEXT_MAX_BYTES / 2];
    size_t length = (size_t)snprintf(text, sizeof text, "an algorithm of %s (", op_kind_text(parser->kind));
    uint32_t count;
    const struct coll_algorithm *const *all = coll_registry(&count);
    const char *between = "";
    for (uint32_t i = 0; i < count && length < sizeof text - 1; i++) {
        if (all[i]->kind == parser->kind) {
            length += (size_t)snprintf(text + length, sizeof text - length, "%s%s", between, all[i]->name);
            between = ", ";
        }
    }
    if (length < sizeof text - 1) {
        snprintf(text + length, sizeof text - length, ")");
    }
    return overrides_expected(parser, at, text, error);
}

/* --- Words and numbers --- */

static void overrides_skip_spaces(struct overrides_parser *parser)
{
    parser->at += strspn(parser->at, " \t");
}

/* Takes the sign if it is next. */
static bool overrides_take(struct overrides_parser *parser, char sign)
{
    overrides_skip_spaces(parser);
    if (*parser->at != sign) {
        return false;
    }
    parser->at++;
    overrides_skip_spaces(parser);
    return true;
}

static bool overrides_is_digit(char sign)
{
    return sign >= '0' && sign <= '9';
}

static size_t overrides_word_length(const struct overrides_parser *parser)
{
    return strspn(parser->at, WORD_SIGNS);
}

/* Whether a range is next: "nodes" and a digit, or a digit. */
static bool overrides_at_range(const struct overrides_parser *parser)
{
    size_t length = overrides_word_length(parser);
    bool is_nodes = length == strlen(NODES_WORD) && strncmp(parser->at, NODES_WORD, length) == 0;
    return is_nodes || overrides_is_digit(*parser->at);
}

static enum status overrides_parse_number(struct overrides_parser *parser, bool is_size, uint64_t *out,
                                          struct error *error)
{
    const char *begin = parser->at;
    if (!overrides_is_digit(*begin)) {
        return overrides_expected(parser, begin, is_size ? "a size" : "a number of nodes", error);
    }
    uint64_t number = 0;
    bool fits = true;
    for (; overrides_is_digit(*parser->at); parser->at++) {
        fits = fits && checked_mul_u64(number, 10, &number) &&
               checked_add_u64(number, (uint64_t)(*parser->at - '0'), &number);
    }
    static const char units[] = "kmg";
    const char *unit = is_size && *parser->at != '\0' ? strchr(units, *parser->at) : NULL;
    if (unit != NULL) {
        fits = fits && checked_mul_u64(number, UINT64_C(1) << (10 * (unit - units + 1)), &number);
        parser->at++;
    }
    if (!fits || (!is_size && number > UINT32_MAX)) {
        return overrides_expected(parser, begin, is_size ? "a size below 2^64" : "fewer nodes", error);
    }
    *out = number;
    return STATUS_OK;
}

/* --- Rules --- */

static enum status overrides_parse_range(struct overrides_parser *parser, struct coll_override *rule,
                                         struct error *error)
{
    const char *begin = parser->at;
    bool is_size = overrides_is_digit(*begin);
    if (!is_size) {
        parser->at += strlen(NODES_WORD);
        overrides_skip_spaces(parser);
    }
    uint64_t first = 0;
    uint64_t last = is_size ? UINT64_MAX : UINT32_MAX;
    enum status status = overrides_parse_number(parser, is_size, &first, error);
    if (status != STATUS_OK) {
        return status;
    }
    if (!overrides_take(parser, '-')) {
        return overrides_expected(parser, parser->at, "\"-\"", error);
    }
    if (overrides_is_digit(*parser->at)) {
        uint64_t end = 0;
        const char *end_at = parser->at;
        status = overrides_parse_number(parser, is_size, &end, error);
        if (status != STATUS_OK) {
            return status;
        }
        if (end <= first) {
            return overrides_expected(parser, end_at, "more than the range begins with", error);
        }
        last = end - 1;
    }
    if (is_size) {
        rule->size_first_bytes = first;
        rule->size_last_bytes = last;
    } else {
        rule->nodes_first = (uint32_t)first;
        rule->nodes_last = (uint32_t)last;
    }
    return STATUS_OK;
}

static enum status overrides_parse_kind(struct overrides_parser *parser, struct error *error)
{
    size_t length = overrides_word_length(parser);
    for (unsigned number = 0; number < OP_KIND_COUNT; number++) {
        enum op_kind kind;
        if (op_kind_from_wire(number, &kind) && !op_kind_is_message(kind) &&
            strlen(op_kind_text(kind)) == length && strncmp(parser->at, op_kind_text(kind), length) == 0) {
            parser->kind = kind;
            parser->has_kind = true;
            parser->at += length;
            return STATUS_OK;
        }
    }
    return overrides_expected(parser, parser->at, "an operation with algorithms (all_reduce, ...)", error);
}

static enum status overrides_parse_algorithm(struct overrides_parser *parser, struct coll_override *rule,
                                             struct error *error)
{
    size_t length = overrides_word_length(parser);
    uint32_t count;
    const struct coll_algorithm *const *all = coll_registry(&count);
    for (uint32_t i = 0; i < count; i++) {
        if (all[i]->kind == parser->kind && strlen(all[i]->name) == length &&
            strncmp(parser->at, all[i]->name, length) == 0) {
            rule->algorithm_id = all[i]->id;
            parser->at += length;
            return STATUS_OK;
        }
    }
    return overrides_expected_algorithm(parser, parser->at, error);
}

static enum status overrides_parse_rule(struct overrides_parser *parser, struct coll_override *rule,
                                        struct error *error)
{
    enum status status = STATUS_OK;
    overrides_skip_spaces(parser);
    bool ranged = overrides_at_range(parser) && parser->has_kind;
    if (!ranged) {
        status = overrides_parse_kind(parser, error);
        ranged = status == STATUS_OK && overrides_take(parser, ':');
    }
    *rule =
        (struct coll_override){.kind = parser->kind, .size_last_bytes = UINT64_MAX, .nodes_last = UINT32_MAX};
    while (status == STATUS_OK && ranged) {
        status = overrides_at_range(parser)
                     ? overrides_parse_range(parser, rule, error)
                     : overrides_expected(parser, parser->at, "a range, as 4k-8k or nodes2-9", error);
        ranged = status == STATUS_OK && overrides_take(parser, ':');
    }
    if (status != STATUS_OK) {
        return status;
    }
    if (!overrides_take(parser, '=')) {
        return overrides_expected(parser, parser->at, "\":\" or \"=\"", error);
    }
    return overrides_parse_algorithm(parser, rule, error);
}

enum status coll_overrides_parse(const char *text, struct coll_overrides *out, struct error *error)
{
    struct overrides_parser parser = {.text = text, .at = text};
    struct coll_overrides parsed = {0};
    overrides_skip_spaces(&parser);
    bool more = *parser.at != '\0';
    while (more) {
        if (parsed.count == COLL_OVERRIDES_MAX) {
            return error_set(error, STATUS_LIMIT, "algorithms, at character %zu: more than %d rules",
                             (size_t)(parser.at - text) + 1, COLL_OVERRIDES_MAX);
        }
        enum status status = overrides_parse_rule(&parser, &parsed.rules[parsed.count], error);
        if (status != STATUS_OK) {
            return status;
        }
        parsed.count++;
        more = overrides_take(&parser, ',') || overrides_take(&parser, ';');
    }
    if (*parser.at != '\0') {
        return overrides_expected(&parser, parser.at, "\",\", \";\" or the end", error);
    }
    *out = parsed;
    return STATUS_OK;
}

const struct coll_algorithm *coll_overrides_find(const struct coll_overrides *overrides,
                                                 const struct coll_choice *choice)
{
    for (uint32_t i = 0; i < overrides->count; i++) {
        const struct coll_override *rule = &overrides->rules[i];
        if (rule->kind == choice->kind && choice->size_bytes >= rule->size_first_bytes &&
            choice->size_bytes <= rule->size_last_bytes && choice->node_count >= rule->nodes_first &&
            choice->node_count <= rule->nodes_last) {
            return coll_registry_by_id(rule->algorithm_id);
        }
    }
    return NULL;
}
