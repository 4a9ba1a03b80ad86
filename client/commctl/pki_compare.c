#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <termios.h>
#include <unistd.h>

#include "client/commctl/pki_join.h"

enum answer { ANSWER_NONE, ANSWER_YES, ANSWER_NO };

void pki_person_init(struct pki_person *person)
{
    *person = (struct pki_person){.terminal = isatty(STDIN_FILENO) == 1};
}

/* --- The person --- */

static void ask(const struct pki_comparison *comparison, const char *code)
{
    if (comparison->person->terminal) {
        /* What was typed before the code was shown answers nothing. */
        (void)tcflush(STDIN_FILENO, TCIFLUSH);
        printf("Does %s show the code %s, too? [y/n] ", comparison->other, code);
        comparison->person->asked = true;
    } else {
        printf("standard input is no terminal: it must say the code that %s shows\n", comparison->other);
    }
    fflush(stdout);
}

static enum answer answer_of(const struct pki_comparison *comparison, const char *line, const char *code)
{
    if (!comparison->person->terminal) {
        return strcmp(line, code) == 0 ? ANSWER_YES : ANSWER_NO;
    }
    if (strcasecmp(line, "y") == 0 || strcasecmp(line, "yes") == 0) {
        return ANSWER_YES;
    }
    if (strcasecmp(line, "n") == 0 || strcasecmp(line, "no") == 0) {
        return ANSWER_NO;
    }
    ask(comparison, code);
    return ANSWER_NONE;
}

/* Before anything else is printed. */
static void end_question(struct pki_person *person)
{
    if (person->asked) {
        putchar('\n');
        person->asked = false;
    }
}

/* Takes a whole line from what was read, without spaces at its end. Returns false if there is none yet. A
 * line that is too long is none: the empty one stands for it. */
static bool take_line(struct pki_person *person, char line[sizeof person->line])
{
    char *end = memchr(person->line, '\n', person->used);
    if (end == NULL && person->used == sizeof person->line) {
        person->overlong = true;
        person->used = 0;
    }
    if (end == NULL) {
        return false;
    }
    size_t length = (size_t)(end - person->line);
    size_t text = person->overlong || memchr(person->line, 0, length) != NULL ? 0 : length;
    memcpy(line, person->line, text);
    while (text > 0 && strchr(" \t\r", line[text - 1]) != NULL) {
        text--;
    }
    line[text] = '\0';
    person->asked = false; /* the person has ended the line */
    person->overlong = false;
    person->used -= length + 1;
    memmove(person->line, end + 1, person->used);
    return true;
}

static void read_person(struct pki_person *person)
{
    ssize_t got = read(STDIN_FILENO, person->line + person->used, sizeof person->line - person->used);
    if (got > 0) {
        person->used += (size_t)got;
    } else if (got == 0 || (errno != EINTR && errno != EAGAIN)) {
        person->ended = true;
        if (person->used > 0) {
            person->line[person->used++] = '\n'; /* there is room: whole buffers are taken at once */
        }
    }
}

static enum answer listen_to_person(const struct pki_comparison *comparison, const char *code)
{
    char line[sizeof comparison->person->line];
    enum answer answer = ANSWER_NONE;
    while (answer == ANSWER_NONE && take_line(comparison->person, line)) {
        answer = answer_of(comparison, line, code);
    }
    return answer;
}

/* --- The other side --- */

/* What ends a comparison here: told to the other side (unless null), and printed. */
struct end {
    const char *told;
    const char *printed;
};

static bool say_end(const struct pki_comparison *comparison, struct end end)
{
    end_question(comparison->person);
    fprintf(stderr, "commctl pki: %s: %s\n", comparison->other, end.printed);
    if (end.told != NULL) {
        pki_link_refuse(comparison->link, end.told);
    }
    return false;
}

static bool confirm(const struct pki_comparison *comparison)
{
    struct pki_message message = {.kind = PKI_MESSAGE_CONFIRM, .has_proof = comparison->secret != NULL};
    if (message.has_proof && !pki_proof(comparison->secret, comparison->role, comparison->transcript,
                                        message.hashes[PKI_HASH_PROOF])) {
        return say_end(comparison, (struct end){"the proof cannot be made", "the proof cannot be made"});
    }
    return pki_link_send(comparison->link, &message) ||
           say_end(comparison, (struct end){NULL, comparison->link->wrong});
}

/* Takes the other side's CONFIRM, which must prove that it knows the code if that was agreed in advance. */
static bool take_confirmation(struct pki_comparison *comparison)
{
    struct pki_message message;
    bool received = pki_link_receive(comparison->link, PKI_MESSAGE_MAX_BYTES, PKI_STEP_TIMEOUT_MS, &message);
    if (!received || message.kind != PKI_MESSAGE_CONFIRM) {
        end_question(comparison->person);
    }
    if (!pki_link_is(comparison->link, received, PKI_MESSAGE_CONFIRM, &message)) {
        return false;
    }
    const char *role = strcmp(comparison->role, "join") == 0 ? "admit" : "join";
    comparison->secret_proven =
        comparison->secret_proven ||
        (comparison->secret != NULL &&
         pki_proof_is_right(&message, comparison->secret, role, comparison->transcript));
    pki_message_free(&message);
    return comparison->secret == NULL || comparison->secret_proven ||
           say_end(comparison, (struct end){"the two sides have different codes",
                                            "does not know the code that was given in advance"});
}

/* --- Both --- */

static enum answer first_answer(const struct pki_comparison *comparison, const char *code)
{
    if (comparison->secret != NULL) {
        puts("the code was agreed in advance");
        return comparison->secret_proven ? ANSWER_YES : ANSWER_NONE;
    }
    printf("code %s\n", code);
    ask(comparison, code);
    return listen_to_person(comparison, code); /* a script may have written the line already */
}

/* Waits for the person and for the other side at the same time: either can end the exchange. */
static bool wait_for_either(const struct pki_comparison *comparison, bool wants_person, int64_t deadline_ms,
                            bool *other_spoke)
{
    struct pki_person *person = comparison->person;
    struct pollfd ready[2] = {{.fd = comparison->link->fd, .events = POLLIN},
                              {.fd = wants_person ? STDIN_FILENO : -1, .events = POLLIN}};
    *other_spoke = false;
    switch (pki_wait(ready, 2, deadline_ms)) {
    case PKI_WAITED_INTERRUPTED:
        return say_end(comparison, (struct end){"the person there ended commctl", "interrupted"});
    case PKI_WAITED_TIMED_OUT:
        return say_end(comparison, (struct end){"nobody answered in time", "nobody answered in time"});
    case PKI_WAITED_READY:
        break;
    }
    *other_spoke = ready[0].revents != 0;
    if (wants_person && ready[1].revents != 0) {
        read_person(person);
    }
    return true;
}

static bool act_on(const struct pki_comparison *comparison, enum answer answer, bool other_confirmed)
{
    if (answer == ANSWER_NO) {
        return say_end(comparison,
                       (struct end){"the code shown there is another one, or the person there refused",
                                    "refused here: nothing was done"});
    }
    if (!confirm(comparison)) {
        return false;
    }
    if (!other_confirmed && comparison->secret == NULL) {
        printf("waiting for the person at %s\n", comparison->other);
    }
    return true;
}

bool pki_compare(struct pki_comparison *comparison)
{
    char code[PKI_CODE_BYTES];
    bool other_confirmed = false;
    bool other_spoke;
    int64_t deadline_ms = now_ms() + PKI_PERSON_TIMEOUT_MS;
    pki_code_text(comparison->transcript, code);
    enum answer answer = first_answer(comparison, code);
    if (answer != ANSWER_NONE && !act_on(comparison, answer, false)) {
        return false;
    }
    while (answer == ANSWER_NONE || !other_confirmed) {
        bool wants_person = answer == ANSWER_NONE && comparison->secret == NULL;
        if (wants_person && comparison->person->ended) {
            return say_end(comparison, (struct end){"nobody can answer there",
                                                    "standard input has ended, so nobody can answer"});
        }
        if (!wait_for_either(comparison, wants_person, deadline_ms, &other_spoke)) {
            return false;
        }
        if (other_spoke && !take_confirmation(comparison)) {
            return false;
        }
        other_confirmed = other_confirmed || other_spoke;
        if (answer == ANSWER_NONE) {
            answer = wants_person                ? listen_to_person(comparison, code)
                     : comparison->secret_proven ? ANSWER_YES
                                                 : ANSWER_NONE;
            if (answer != ANSWER_NONE && !act_on(comparison, answer, other_confirmed)) {
                return false;
            }
        }
    }
    return true;
}
