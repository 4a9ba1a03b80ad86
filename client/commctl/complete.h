#ifndef CLIENT_COMMCTL_COMPLETE_H
#define CLIENT_COMMCTL_COMPLETE_H

#include <stdbool.h>
#include <stddef.h>

/*
 * What a shell may offer for the word at the cursor: `commctl complete WORD...`, where the last word is the
 * one under the cursor. Each line of the output is a word, a tab and what it means; ":files" alone asks the
 * shell to offer files. The shells' scripts are in client/commctl/completion. Everything comes from the
 * usages that `commctl help` shows, in this language:
 *
 *   lower       typed as it is, if it is the first word after the verb; "a|b": one of these
 *   -o, --long  an option; "-o|--long": two names of one option
 *   UPPER       a value of the option before it, or an argument; FILE, DIR and PATH are files
 *
 * Brackets, lone bars and dots are not looked at.
 */

/* A verb of commctl, as main.c knows it. */
struct complete_verb {
    const char *name;
    const char *usage; /* all of its arguments */
    const char *help;
};

/* Writes the candidates to standard output. words: those after "commctl"; count may be 0. */
void complete(const struct complete_verb *verbs, size_t verb_count, const char *global_usage, int count,
              char **words);

#endif
