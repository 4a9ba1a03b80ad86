#ifndef PROTO_VERSION_RANGE_H
#define PROTO_VERSION_RANGE_H

#include <stddef.h>
#include <stdint.h>

/*
 * The versions of a protocol that one side speaks. Both sides send theirs in their Hello, and use the newest
 * one that both know. So the nodes of a cluster, or a node and its programs, can be upgraded one after the
 * other. What is optional within one version is a named feature. Pure functions; thread-safe.
 */
struct version_range {
    uint32_t oldest; /* 0: only `newest`, from software that knew no ranges */
    uint32_t newest;
};

/* The newest version that both speak; 0 if there is none. */
uint32_t version_choose(struct version_range ours, struct version_range theirs);

#define VERSION_RANGE_TEXT_BYTES 40
/* Writes a readable text: "version 4", "versions 2 to 4". Writes at most size bytes, terminated. Returns
 * text. */
const char *version_range_text(struct version_range range, char *text, size_t size);

#endif
