#ifndef COMMCLIENT_LISTS_H
#define COMMCLIENT_LISTS_H

/*
 * Collectives on lists of buffers: one pointer for each rank, in rank order. Included by commclient.h.
 *
 * These are other forms of the _v functions, and agree with them: one rank may call the one, and another rank
 * the other. "Agreed" is what it is there. The blocks may be anywhere, each in memory of any kind. The arrays
 * are read before the call returns. A pointer may be null where its count is 0. Options are as everywhere.
 *
 * If all blocks of a list lie in one memory that commd works on directly, such as one chunk of a pool, they
 * are used in place. Otherwise each block is copied to or from its place, without a copy in between.
 *
 * Blocks that are received must not overlap each other: COMM_INVALID_ARGUMENT. Blocks that are sent may.
 *
 * On a GPU, the blocks of one list must all lie in one allocation, such as one chunk of a pool, or all be in
 * host memory. Otherwise the call fails with COMM_UNSUPPORTED.
 */

/* receives[i], of counts[i] elements, gets the block of rank i. Rank i sends counts[i] elements. In place:
 * send is receives[i] of this rank. */
COMM_API COMM_CHECK comm_result_t comm_all_gather_list(comm_t *comm, const void *send, void *const *receives,
                                                       const size_t *counts, comm_dtype_t dtype,
                                                       const comm_call_options_t *options);
/* sends[i], of counts[i] elements, goes to the reduction of rank i. In place: receive is sends[i] of this
 * rank. */
COMM_API COMM_CHECK comm_result_t comm_reduce_scatter_list(comm_t *comm, const void *const *sends,
                                                           void *receive, const size_t *counts,
                                                           comm_dtype_t dtype, comm_op_t op,
                                                           const comm_call_options_t *options);
/* sends[j] of rank i goes to receives[i] of rank j. In place: sends[i] == receives[i], for any of the ranks.
 */
COMM_API COMM_CHECK comm_result_t comm_all_to_all_list(comm_t *comm, const void *const *sends,
                                                       const size_t *send_counts, void *const *receives,
                                                       const size_t *receive_counts, comm_dtype_t dtype,
                                                       const comm_call_options_t *options);
/* receives and counts are read on the root only. In place on the root: send is receives[root]. */
COMM_API COMM_CHECK comm_result_t comm_gather_list(comm_t *comm, const void *send, size_t send_count,
                                                   void *const *receives, const size_t *counts,
                                                   comm_dtype_t dtype, uint32_t root,
                                                   const comm_call_options_t *options);
/* sends and counts are read on the root only. In place on the root: receive is sends[root]. */
COMM_API COMM_CHECK comm_result_t comm_scatter_list(comm_t *comm, const void *const *sends,
                                                    const size_t *counts, void *receive, size_t receive_count,
                                                    comm_dtype_t dtype, uint32_t root,
                                                    const comm_call_options_t *options);

#endif
