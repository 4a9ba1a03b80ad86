#include "client/commctl/complete.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#define TOKEN_MAX_BYTES 128

/* Takes the next token of a usage, and returns what follows it; null at the end. */
static const char *next_token(const char *usage, char token[TOKEN_MAX_BYTES])
{
    usage += strspn(usage, " \n[].");
    size_t length = strcspn(usage, " \n[].");
    if (length == 0) {
        return NULL;
    }
    snprintf(token, TOKEN_MAX_BYTES, "%.*s", (int)length, usage);
    return usage + length;
}

static bool is_word(const char *token)
{
    return islower((unsigned char)token[0]) != 0;
}

static bool is_option(const char *token)
{
    return token[0] == '-' && token[1] != '\0';
}

/* Whether one of the names in "a|b" is the word. */
static bool has_name(const char *names, const char *word)
{
    size_t length = strlen(word);
    for (const char *at = names; *at != '\0'; at += strspn(at, "|")) {
        size_t name_length = strcspn(at, "|");
        if (name_length == length && memcmp(at, word, length) == 0) {
            return true;
        }
        at += name_length;
    }
    return false;
}

/* Prints those names in "a|b" that begin with the word. */
static void offer(const char *names, const char *word, const char *help)
{
    for (const char *at = names; *at != '\0'; at += strspn(at, "|")) {
        size_t length = strcspn(at, "|");
        if (length >= strlen(word) && strncmp(at, word, strlen(word)) == 0) {
            printf("%.*s\t%s\n", (int)length, at, help);
        }
        at += length;
    }
}

static bool takes_files(const char *token)
{
    return has_name(token, "FILE") || has_name(token, "DIR") || has_name(token, "PATH");
}

static void offer_value(const char *token, const char *word)
{
    if (is_word(token)) {
        offer(token, word, "");
    } else if (takes_files(token)) {
        puts(":files");
    }
}

/* The value that an option takes: empty if it takes none, or is unknown. */
static void find_value(const char *usage, const char *option, char value[TOKEN_MAX_BYTES])
{
    char token[TOKEN_MAX_BYTES];
    value[0] = '\0';
    while ((usage = next_token(usage, token)) != NULL) {
        if (is_option(token) && has_name(token, option)) {
            if (next_token(usage, value) == NULL || is_option(value) || value[0] == '|') {
                value[0] = '\0';
            }
            return;
        }
    }
}

static void offer_options(const char *usage, const char *word)
{
    char token[TOKEN_MAX_BYTES];
    while ((usage = next_token(usage, token)) != NULL) {
        if (is_option(token)) {
            offer(token, word, "");
        }
    }
}

/* first: whether no argument of the verb is there yet. */
static void offer_arguments(const char *usage, const char *word, bool first)
{
    char token[TOKEN_MAX_BYTES], option[TOKEN_MAX_BYTES] = "", value[TOKEN_MAX_BYTES];
    const char *at = usage;
    bool files = false;
    while ((at = next_token(at, token)) != NULL) {
        find_value(usage, option, value);
        bool is_value = option[0] != '\0' && strcmp(value, token) == 0;
        snprintf(option, sizeof option, "%.*s", is_option(token) ? (int)strcspn(token, "|") : 0, token);
        if (is_value || is_option(token)) {
            continue;
        }
        if (is_word(token) && first) {
            offer(token, word, "");
        }
        files = files || takes_files(token);
    }
    if (files) {
        puts(":files");
    }
}

/* Whether the word at the cursor is a value of the option before it; offers it then. */
static bool offer_option_value(const char *usage, const char *before, const char *word)
{
    char value[TOKEN_MAX_BYTES];
    if (!is_option(before)) {
        return false;
    }
    find_value(usage, before, value);
    offer_value(value, word);
    return value[0] != '\0';
}

/* The index of the verb among the words before the last, or that of the last. */
static int find_verb_word(const char *global_usage, int count, char **words)
{
    char value[TOKEN_MAX_BYTES];
    int at = 0;
    while (at < count - 1 && is_option(words[at])) {
        find_value(global_usage, words[at], value);
        at += value[0] != '\0' ? 2 : 1;
    }
    return at < count - 1 ? at : count - 1;
}

static void complete_verb_arguments(const char *usage, int count, char **words)
{
    const char *word = words[count - 1];
    if (count > 1 && offer_option_value(usage, words[count - 2], word)) {
        return;
    }
    if (word[0] == '-') {
        offer_options(usage, word);
        offer("--help", word, "what the verb takes");
        return;
    }
    offer_arguments(usage, word, count == 1);
}

void complete(const struct complete_verb *verbs, size_t verb_count, const char *global_usage, int count,
              char **words)
{
    static char nothing[] = "";
    char *no_words[] = {nothing};
    words = count > 0 ? words : no_words;
    count = count > 0 ? count : 1;
    int verb = find_verb_word(global_usage, count, words);
    const char *word = words[count - 1];
    if (verb == count - 1) {
        if (verb > 0 && offer_option_value(global_usage, words[verb - 1], word)) {
            return;
        }
        if (word[0] == '-') {
            offer_options(global_usage, word);
        }
        for (size_t i = 0; i < verb_count; i++) {
            offer(verbs[i].name, word, verbs[i].help);
        }
        return;
    }
    for (size_t i = 0; i < verb_count; i++) {
        if (strcmp(words[verb], "help") == 0) {
            offer(verbs[i].name, word, verbs[i].help);
        } else if (strcmp(words[verb], verbs[i].name) == 0) {
            complete_verb_arguments(verbs[i].usage, count - verb - 1, words + verb + 1);
        }
    }
}
