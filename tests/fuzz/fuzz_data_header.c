#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "proto/data_header.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int truth)
{
    if (!truth) {
        abort();
    }
}

/* An accepted header must be in range, and must encode to the same bytes again. A refusal must name the
 * field. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size != DATA_HEADER_BYTES) {
        return 0;
    }
    struct data_header header;
    const char *what = NULL;
    enum status status = data_header_decode(data, &header, &what);
    if (status != STATUS_OK) {
        require(status == STATUS_PROTOCOL || status == STATUS_VERSION);
        require(what != NULL && what[0] != '\0');
        return 0;
    }
    require(what == NULL);
    require(op_terms_are_valid(&header.terms, &what));
    require(op_terms_difference(&header.terms, &header.terms) == NULL);
    char text[OP_TERMS_TEXT_MAX_BYTES];
    op_terms_describe(&header.terms, text, sizeof text);
    require(strlen(text) < sizeof text - 1); /* the text was not cut */
    require(header.payload_bytes <= DATA_PAYLOAD_MAX_BYTES);
    uint8_t again[DATA_HEADER_BYTES];
    data_header_encode(&header, again);
    require(memcmp(again, data, sizeof(again)) == 0);
    return 0;
}
