#ifndef PROTO_TRACE_EVENT_H
#define PROTO_TRACE_EVENT_H

#include <stdbool.h>
#include <stdint.h>

/*
 * The events of an operation that commd and the library record: names, records, and probes for system tracers
 * (bpftrace, perf, SystemTap: USDT probes of the provider "commd"). tests/README.md explains how to take a
 * trace.
 */
#if defined(__has_include)
#if __has_include(<sys/sdt.h>)
#include <sys/sdt.h>
#endif
#endif
/* A probe is one nop and a note. It costs nothing while no tracer is attached. Without the header there are
 * no probes. */
#ifdef DTRACE_PROBE6
#define TRACE_PROBE(name, comm_id, seq, kind, row, slice, value)                                             \
    DTRACE_PROBE6(commd, name, comm_id, seq, kind, row, slice, value)
#else
#define TRACE_PROBE(name, comm_id, seq, kind, row, slice, value) ((void)0)
#endif

/* COMMD_TRACE in the environment of commd, and of a program: area names, separated by commas. */
#define TRACE_ENVIRONMENT "COMMD_TRACE"
/* The file that the library writes; %p stands for the process id. */
#define TRACE_FILE_ENVIRONMENT "COMMD_TRACE_FILE"
#define TRACE_FILE_DEFAULT "commd-trace-%p.json"
#define TRACE_AREA_COMM 1u /* "comm": communicators form, fail and are left */
#define TRACE_AREA_OP 2u   /* "op": collectives and messages */
#define TRACE_AREAS_ALL (TRACE_AREA_COMM | TRACE_AREA_OP)

/*
 * Events: NAME, probe, area. commctl and commd know them by number, so new ones go to the end.
 *
 * | event | row | slice | value |
 * | comm_* | rank | - | size, or status |
 * | op_taken, op_posted, op_told: of one rank | rank | - | ticket, bytes, status |
 * | op_matched, op_started, op_done: of all local ranks | - | - | elements, slices, 1 if it ended well |
 * | slice_*, stage_in_done, round_* | TRACE_LANE_ROW | slice | bytes, round |
 * | message_* (seq: the ticket; matched: 0) | rank | tag | bytes, peer rank, peer rank, status, status |
 */
#define TRACE_EVENTS(X)                                                                                      \
    X(COMM_FORMED, comm_formed, COMM)                                                                        \
    X(COMM_FAILED, comm_failed, COMM)                                                                        \
    X(COMM_LEFT, comm_left, COMM)                                                                            \
    X(OP_TAKEN, op_taken, OP)                                                                                \
    X(OP_POSTED, op_posted, OP)                                                                              \
    X(OP_MATCHED, op_matched, OP)                                                                            \
    X(OP_STARTED, op_started, OP)                                                                            \
    X(SLICE_STARTED, slice_started, OP)                                                                      \
    X(STAGE_IN_DONE, stage_in_done, OP)                                                                      \
    X(ROUND_SENT, round_sent, OP)                                                                            \
    X(ROUND_RECEIVED, round_received, OP)                                                                    \
    X(SLICE_DONE, slice_done, OP)                                                                            \
    X(OP_DONE, op_done, OP)                                                                                  \
    X(OP_TOLD, op_told, OP)                                                                                  \
    X(MESSAGE_TAKEN, message_taken, OP)                                                                      \
    X(MESSAGE_POSTED, message_posted, OP)                                                                    \
    X(MESSAGE_MATCHED, message_matched, OP)                                                                  \
    X(MESSAGE_DONE, message_done, OP)                                                                        \
    X(MESSAGE_TOLD, message_told, OP)

#define TRACE_EVENT_NUMBER(NAME, name, area) TRACE_##NAME,
enum trace_event { TRACE_EVENTS(TRACE_EVENT_NUMBER) TRACE_EVENT_COUNT };

/* A rail is a network thread. Within a node, it is a thread that shares an operation's slices. */
#define TRACE_LANE_ROW(rail, lane) ((uint32_t)(rail) << 8 | (uint32_t)(lane))
#define TRACE_LANE_NCCL 252u /* operations that NCCL does among GPUs: each is one slice */
#define TRACE_LANE_GPUS 253u /* operations that only GPU queues do (kernels, copies): each is one slice */
/* The barrier that runs beside the data: of the oldest operation, and of later ones, so many rows. */
#define TRACE_LANE_AGREEMENT 232u
#define TRACE_LANE_AGREEMENTS 16u
#define TRACE_LANE_LOCAL 255u /* slices of an all-to-all that stay within the node */

/* Fixed layout: pages of records are sent to commctl unchanged. */
struct trace_record {
    uint64_t time_ns; /* CLOCK_MONOTONIC */
    uint64_t comm_id;
    uint64_t seq;
    uint64_t value;
    uint32_t row;
    uint32_t slice;
    uint32_t event; /* enum trace_event */
    uint32_t kind;  /* enum op_kind */
};
/* An event in trace files: the time of day minus the node's CLOCK_MONOTONIC, in microseconds. */
#define TRACE_CLOCK_EVENT "commd_clock"
#define TRACE_RECORD_WORDS 6
_Static_assert(sizeof(struct trace_record) == TRACE_RECORD_WORDS * sizeof(uint64_t), "no holes");

/* The number of a row in a trace file, the same for all programs that write to it. */
uint32_t trace_row_id(const char *label, uint64_t comm_id);

/* Parses "comm,op" into areas. Null and "" mean no area. Returns false if there is another word. */
bool trace_areas_parse(const char *text, unsigned *areas);

#endif
