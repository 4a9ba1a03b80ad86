#ifndef TESTS_SYSTEM_SURFACE_H
#define TESTS_SYSTEM_SURFACE_H

#include <commclient.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What the files of surface share. */

#define POISON 0xA5
#define BUFFER_ELEMENTS 65536u
#define SIZE_MAX_RANKS 32

extern comm_client_t *client;
extern comm_t *comm;
extern uint32_t rank, size;
extern int64_t *input, *output; /* of the turn: registered memory or not */
extern int device;
extern unsigned long checked;
extern uint64_t turn;

/* surface_rank.c: what is wrong is printed, and ends the process. */
void expect(comm_result_t result, comm_result_t expected, const char *what);
void expect_ok(comm_result_t result, const char *what);
uint64_t mix(uint64_t a, uint64_t b);
/* What rank `of` has at `index` of its input. */
int64_t value(uint32_t of, uint64_t index);
int64_t sum_of(uint32_t first, uint32_t end, uint64_t index);
/* Where operations find it. */
void *at(const int64_t *host);
void fill(size_t count);
void poison(size_t count);
/* Into the output, from the element on: what an operation in place begins with. */
void copy_input(size_t first, size_t count);
void get_output(void);
void check_at(const char *what, size_t i, int64_t expected);
void check_poison(const char *what, size_t from, size_t to);
void done(void);

/* Each of the others calls what it is named after, of that many elements, and checks what becomes of it. */

/* surface_collectives.c */
void vectors(size_t count);
void vectors_in_place(size_t count);
/* What the host has and what a GPU has, in one call; on the host it is all the same. */
void places(size_t count);
void gathers(size_t count, bool in_place);
void scatters(size_t count);
void exchanges(size_t count, bool in_place);
void layouts(size_t most);

/* surface_requests.c */
void handles(size_t count);
void persistent(size_t count);
void groups(size_t count);

/* surface_messages.c */
/* Everybody to everybody, oneself included: two of each tag in order, the second tag taken first; then any
 * source. In a group every other time: then a stream does not come between them. */
void messages(size_t count);

#endif
