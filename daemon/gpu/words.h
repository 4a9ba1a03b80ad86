#ifndef DAEMON_GPU_WORDS_H
#define DAEMON_GPU_WORDS_H

#include "daemon/base/fence.h"
#include "daemon/gpu/devices.h"

/*
 * Clients' semaphores, as streams of commd see them. A stream of commd may wait for a word that a client's
 * stream writes, and write a word that a client's stream waits for. So commd registers the pages of such
 * words with CUDA, at their first use, until the memory is freed. To register or unregister them, the driver
 * may wait for all work of a GPU. So a thread of a GPU does that (calls.h), and the processor looks at the
 * words until they are registered. A later use tries again if that thread has no room, or is late.
 *
 * commd ends a wait by writing the word. The client can write the words as well, or take the pages out of its
 * file. In the latter case only a stream can end the wait: the device address stays that of the registered
 * page.
 */
struct memory;

#define GPU_WORDS_MAX_BYTES                                                                                  \
    (UINT64_C(1) << 20) /* larger memory is not registered: its pages would be pinned */
#define GPU_AHEAD_MAX 16u

/* How many operations of a communicator streams may wait for in advance, behind the one that runs. 0, at the
 * beginning: none, and no words are registered. At most GPU_AHEAD_MAX. Call it before there are clients. */
void gpu_words_set_ahead(struct gpu_devices *gpus, uint32_t ahead);
uint32_t gpu_words_ahead(const struct gpu_devices *gpus);

/*
 * Where the streams of all GPUs see a word in a client's host memory, once it is registered; nowhere, if
 * commd does not run ahead. The result is valid as long as `words`. of_gpu: any memory on a GPU, which names
 * the GPUs, and the one whose thread registers the words. The main thread.
 */
struct gpu_word gpu_words_find(const struct memory *of_gpu, struct memory *words, uint64_t offset_bytes);

/* The memory of a word that gpu_words_find found. */
struct memory *gpu_words_memory(const struct gpu_word *word);

/*
 * An operation with waits for words is put in a stream of the GPU, and is over. CUDA frees memory only when
 * all work of the GPU is done, also such waits. So a communicator of NCCL cannot end before them: its time to
 * end counts from the last one on (groups.h). Each wait ends at its operation's deadline. No wait may begin
 * while a communicator of NCCL on that GPU ends. The main thread.
 */
bool gpu_words_may_wait(const struct gpu_devices *gpus, uint32_t gpu);
void gpu_words_begin_wait(struct gpu_devices *gpus, uint32_t gpu);
void gpu_words_end_wait(struct gpu_devices *gpus, uint32_t gpu, uint64_t now_ns);

#endif
