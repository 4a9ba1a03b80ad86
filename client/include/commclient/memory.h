#ifndef COMMCLIENT_MEMORY_H
#define COMMCLIENT_MEMORY_H

/* Buffers that commd has mapped. Included by commclient.h. */

/*
 * Allocates memory that commd works on directly, without a copy. device: as in comm_init.
 *
 * On the host: page-aligned and zeroed. All pages are made at once and are charged to the caller's memory
 * cgroup. Do not remove pages (MADV_REMOVE, fallocate): an operation that meets a missing page fails with
 * COMM_INVALID_ARGUMENT, or takes zeros for it. Ranks of a communicator on this node map the memory that is
 * used in it, read-only, and the library keeps the descriptors of the first 32 memories for that.
 *
 * On a GPU: the size is rounded up to a multiple of 2 MiB, so commd can see no other memory. Use it like
 * memory from cudaMalloc; other GPUs that can reach it may use it, too. It is virtual memory (cuMemCreate),
 * and commd gets a descriptor of it. No other process can open it, and cudaIpcGetMemHandle refuses it. If the
 * GPU or its driver has no virtual memory, the memory comes from cudaMalloc, and commd gets a legacy IPC
 * handle.
 *
 * If the cgroup has too little memory left, the kernel ends one of its processes, as for any other memory.
 *
 * Errors: COMM_NO_MEMORY (also if the machine has less memory and swap left), COMM_LIMIT (one of
 *  commd, or of the process: ulimit -n, -f), COMM_UNSUPPORTED (the device), COMM_PERMISSION (only an
 * IPC handle is possible, and commd refuses IPC handles).
 */
COMM_API COMM_CHECK comm_result_t comm_mem_alloc(comm_client_t *client, size_t size, int device,
                                                 void **memory);

/*
 * Frees memory from comm_mem_alloc. Null is accepted. Waits for operations that still use it. Memory on a GPU
 * also waits for the GPU's streams, as cudaFree does. It is freed when commd has closed it, or has ended, or
 * after 5 seconds. For host memory, commd may keep up to 256 KiB mapped until the client's next call.
 *
 * Errors: COMM_NOT_FOUND if the memory is not from comm_mem_alloc. COMM_UNSUPPORTED if a stream of the GPU is
 * being captured, because the call cannot wait for it: CUDA ends the capture, and the memory stays.
 */
COMM_API comm_result_t comm_mem_free(comm_client_t *client, void *memory);

/*
 * Registers memory that the caller mapped (MAP_SHARED) from a memfd, so that commd works on it directly.
 * offset: where `memory` starts in the file, page-aligned. The fd may be closed afterwards. This call seals
 * the memfd against shrinking, if it is not sealed yet. Missing pages of the file are made, as in
 * comm_mem_alloc. Errors: COMM_INVALID_ARGUMENT if the fd is not a memfd or cannot be sealed, or if `memory`
 * is not mapped from it at this offset; COMM_NO_MEMORY.
 *
 * To register memory on a GPU, pass memfd -1 and offset 0, after the first comm_init on a GPU. This is
 * optional: the first operation that uses the memory registers it otherwise.
 *
 * Memory of a CUDA memory pool is the exception. It must be registered before its first use, and deregistered
 * before cudaFreeAsync is called: CUDA leaves undefined what happens if memory of a pool is freed while
 * another process has it open. The pool must be made with cudaMemPoolCreate, with POSIX descriptors as
 * handles; for the default pool and others the call fails with COMM_UNSUPPORTED. The pool must live until
 * the call returns. It does not matter whether the stream has come to the allocation yet. Operations must
 * come after the allocation: use the same stream, or one that waits for it. COMM_BUSY: memory of the pool
 * that was freed without being deregistered is still in use at these addresses.
 */
COMM_API COMM_CHECK comm_result_t comm_mem_register(comm_client_t *client, void *memory, size_t size,
                                                    int memfd, uint64_t offset);

/*
 * Ends a registration. Waits for operations that still use the memory. On a GPU, the address may be anywhere
 * in an allocation, and it does not matter how the allocation was registered. The call waits at most 5
 * seconds until commd has closed the allocation; then the caller may free it. Memory of a CUDA memory pool
 * may be freed then in any stream.
 *
 * Error COMM_BUSY: commd stands still, and its process has not ended within 5 seconds. commd may write to the
 * memory when it runs again, so the memory stays registered.
 */
COMM_API comm_result_t comm_mem_deregister(comm_client_t *client, void *memory);

/*
 * Splits a communicator: ranks of equal color form a new communicator, ordered by key, then by rank in
 * `comm`. Like a collective, every rank must call it, in the same order as other operations. It waits for the
 * other ranks and for the operations before it. Colors are 0 or more. A rank with color COMM_COLOR_NONE joins
 * no new communicator: its *part becomes null. The new communicator has the options of `comm`, may be split
 * again, and must be destroyed. `comm` stays as it is. If `comm` fails before the new communicator has
 * formed, the call returns that failure at once.
 */
#define COMM_COLOR_NONE (-1)
COMM_API COMM_CHECK comm_result_t comm_split(comm_t *comm, int32_t color, int32_t key, comm_t **part);

#endif
