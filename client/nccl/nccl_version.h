#ifndef CLIENT_NCCL_NCCL_VERSION_H
#define CLIENT_NCCL_NCCL_VERSION_H

/* The version of NCCL that the library says it is: five digits, such as 22809 for 2.28.9. */

#define NCCL_VERSION_DEFAULT 22809
#define NCCL_VERSION_LEAST 21400
#define NCCL_VERSION_MOST 29999
#define NCCL_VERSION_WITH_TIMEOUT 23200 /* the first with result 8 */

/* Returns the number in the text, or the default if it is null or no number in these bounds. */
int nccl_version_parse(const char *text);
/* Returns the version of COMMD_NCCL_VERSION, read once in a process. Any thread. */
int nccl_version(void);

#endif
