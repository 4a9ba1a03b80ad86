#include "daemon/coll/slice.h"

#include <assert.h>

/* Elements of every slice but the last. */
static uint64_t coll_slice_elements(uint64_t element_bytes, uint64_t slice_bytes)
{
    assert(element_bytes > 0);
    uint64_t elements = slice_bytes / element_bytes;
    return elements > 0 ? elements : 1;
}

uint64_t coll_slice_count(uint64_t count_elements, uint64_t element_bytes, uint64_t slice_bytes)
{
    if (count_elements == 0) {
        return 1;
    }
    uint64_t elements = coll_slice_elements(element_bytes, slice_bytes);
    return count_elements / elements + (count_elements % elements != 0);
}

void coll_slice_range(uint64_t count_elements, uint64_t element_bytes, uint64_t slice_bytes, uint64_t index,
                      uint64_t *offset_elements, uint64_t *slice_elements)
{
    assert(index < coll_slice_count(count_elements, element_bytes, slice_bytes));
    if (count_elements == 0) {
        *offset_elements = 0;
        *slice_elements = 0;
        return;
    }
    uint64_t elements = coll_slice_elements(element_bytes, slice_bytes);
    uint64_t offset =
        index * elements; /* less than count_elements, because index is less than the rounded-up quotient */
    uint64_t left = count_elements - offset;
    *offset_elements = offset;
    *slice_elements = left < elements ? left : elements;
}

uint64_t coll_exchange_slice_bytes(uint64_t slice_bytes, uint32_t ranks, uint32_t nodes)
{
    uint64_t locals = ((uint64_t)ranks + nodes - 1) / nodes;
    uint64_t message = slice_bytes < COLL_EXCHANGE_MESSAGE_BYTES ? slice_bytes : COLL_EXCHANGE_MESSAGE_BYTES;
    uint64_t least = (message + locals * locals - 1) / (locals * locals);
    uint64_t part = slice_bytes / (locals * ranks) * COLL_EXCHANGE_SLICES;
    return (part > least ? part : least) * ranks;
}

void coll_part_range(uint64_t count_elements, uint32_t parts, uint32_t index, uint64_t *offset_elements,
                     uint64_t *part_elements)
{
    assert(index < parts);
    uint64_t least = count_elements / parts;
    uint64_t larger_parts = count_elements % parts;
    *offset_elements = least * index + (index < larger_parts ? index : larger_parts);
    *part_elements = least + (index < larger_parts);
}
