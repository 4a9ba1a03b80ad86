#ifndef DAEMON_BASE_TABLE_H
#define DAEMON_BASE_TABLE_H

/*
 * uthash, the only way to include it: by default it ends the process when there is no memory for a table.
 * Here a HASH_ADD that failed leaves the entry out; who adds asks table_has.
 */
#define HASH_NONFATAL_OOM 1
#include <uthash.h>

/* After HASH_ADD of `entry`, which was zero before, with its handle hh. */
#define table_has(entry, hh) ((entry)->hh.tbl != NULL)

#endif
