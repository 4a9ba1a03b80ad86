#ifndef CLIENT_LIB_LAYOUT_H
#define CLIENT_LIB_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Where the blocks of a buffer are: in the caller's memory, in the memory that commd uses, and in the layouts
 * that commd reads. If commd uses the caller's memory, blocks stay where they are. In a staging block, the
 * blocks of a list follow each other, and other buffers keep their shape.
 */
struct call_buffer;
struct client_call;
struct client_memory;
struct client_op;

/* Whether the call has layouts: counts and displacements of the blocks in its input or output. */
bool layout_is_used(const struct client_call *call);
/* The size of one layout. */
size_t layout_bytes(uint32_t rank_count);
/* Writes the layout of a buffer for commd, which uses it in `memory`. Nothing, if the buffer has no layout.
 */
void layout_write(uint64_t *numbers, const struct call_buffer *buffer, const struct client_memory *memory,
                  uint32_t rank_count, size_t element_bytes);
/* Of a list: the bytes from its lowest address to the last one that is touched; 0 if blocks are not a whole
 * number of elements apart, so that no layout describes them. */
size_t layout_span_bytes(const struct call_buffer *buffer, uint32_t rank_count, size_t element_bytes);
/* Copies the buffer into a staging block. */
void layout_copy_in(unsigned char *staged, const struct call_buffer *buffer, uint32_t rank_count,
                    size_t element_bytes);
/* Plans the copies from a staging block to the caller's output: only its blocks, not the gaps between them.
 */
void layout_plan_copies(struct client_op *op, const struct client_call *call, uint32_t rank_count,
                        const unsigned char *staged);

#endif
