#ifndef TESTS_SYSTEM_SURFACE_H
#define TESTS_SYSTEM_SURFACE_H

#include <commclient.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Shared by the source files of the program surface. */

#define POISON 0xA5
#define BUFFER_ELEMENTS 65536u
#define SIZE_MAX_RANKS 32

extern comm_client_t *client;
extern comm_t *comm;
extern uint32_t rank, size;
extern int64_t *input, *output; /* of this turn: in registered memory or not */
extern int device;
extern unsigned long checked;
extern uint64_t turn;

/* surface_rank.c: a wrong result is printed and ends the process. */
void expect(comm_result_t result, comm_result_t expected, const char *what);
void expect_ok(comm_result_t result, const char *what);
uint64_t mix(uint64_t a, uint64_t b);
/* The value at `index` of the input of rank `of`. */
int64_t value(uint32_t of, uint64_t index);
int64_t sum_of(uint32_t first, uint32_t end, uint64_t index);
/* Returns the address that operations get for a host buffer: the same, or the buffer's place on the GPU. */
void *at(const int64_t *host);
void fill(size_t count);
void poison(size_t count);
/* Copies the input into the output, from element `first` on. Operations in place start from this copy. */
void copy_input(size_t first, size_t count);
void get_output(void);
void check_at(const char *what, size_t i, int64_t expected);
void check_poison(const char *what, size_t from, size_t to);
void done(void);

/* Each of the following functions calls what it is named after, with that many elements, and checks the
 * result. */

/* surface_collectives.c */
void vectors(size_t count);
void vectors_in_place(size_t count);
/* Mixes buffers of the host and of a GPU in one call. Without a GPU all of them are on the host. */
void places(size_t count);
void gathers(size_t count, bool in_place);
void scatters(size_t count);
void exchanges(size_t count, bool in_place);
void layouts(size_t most);

/* surface_requests.c */
void handles(size_t count);
void persistent(size_t count);
void groups(size_t count);
void chains(size_t count);

/* surface_messages.c */
/* Each rank sends two messages of each tag to every rank, itself included. Ranks receive the second tag
 * first; the messages of one tag come in order. Then they receive from any source. Every second time this is
 * in a group, so that no stream comes between the messages. */
void messages(size_t count);

#endif
