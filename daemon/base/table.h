#ifndef DAEMON_BASE_TABLE_H
#define DAEMON_BASE_TABLE_H

/*
 * Every file includes uthash through this header. By default uthash ends the process when there is no memory
 * for a table. Here a HASH_ADD that fails leaves the entry out; the caller checks with table_has.
 */
#define HASH_NONFATAL_OOM 1
#include <uthash.h>

/* Whether HASH_ADD has added `entry` with its handle hh. The entry was zero before. */
#define table_has(entry, hh) ((entry)->hh.tbl != NULL)

#endif
