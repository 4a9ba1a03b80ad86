#include "client/commctl/pki.h"
#include "client/commctl/pki_join.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What a command takes beside its options. */
enum pki_subject { PKI_NOBODY, PKI_NODE, PKI_ANYTHING, PKI_ANYTHING_OR_NOBODY, PKI_AUTHORITY_AND_NODE };

/* Options, as bits. */
enum {
    TAKES_DIR = 1 << 0,
    TAKES_REQUEST = 1 << 1,
    TAKES_DAYS = 1 << 2,
    TAKES_NEW_KEY = 1 << 3,
    TAKES_OWNER = 1 << 4,
    TAKES_LISTEN = 1 << 5,
    TAKES_COUNT = 1 << 6,
    TAKES_YES_CODE = 1 << 7,
    TAKES_RENEW = 1 << 8,
    TAKES_CODE = 1 << 9,
};

struct pki_command {
    const char *name;
    enum exit_code (*run)(struct pki *pki);
    enum pki_subject subject;
    unsigned takes;
};

static const struct pki_command pki_commands[] = {
    {"init", pki_init, PKI_NOBODY, TAKES_DIR | TAKES_DAYS},
    {"request", pki_request, PKI_NODE, TAKES_DIR | TAKES_OWNER},
    {"issue", pki_issue, PKI_NODE, TAKES_DIR | TAKES_REQUEST | TAKES_DAYS},
    {"renew", pki_renew, PKI_NODE, TAKES_DIR | TAKES_REQUEST | TAKES_DAYS | TAKES_NEW_KEY},
    {"revoke", pki_revoke, PKI_ANYTHING, TAKES_DIR},
    {"show", pki_show, PKI_ANYTHING_OR_NOBODY, TAKES_DIR},
    {"admit", pki_admit, PKI_NOBODY,
     TAKES_DIR | TAKES_DAYS | TAKES_LISTEN | TAKES_COUNT | TAKES_YES_CODE | TAKES_RENEW},
    {"join", pki_join, PKI_AUTHORITY_AND_NODE, TAKES_DIR | TAKES_OWNER | TAKES_CODE},
};

/* --- Options --- */

/* Each returns null, or what was expected. */
static const char *set_folder(struct pki *pki, const char *text)
{
    pki->folder = text;
    return strlen(text) + NODE_NAME_MAX_BYTES + 8 < sizeof pki->path ? NULL : "a shorter path";
}

static const char *set_request(struct pki *pki, const char *text)
{
    pki->request_path = text;
    return NULL;
}

static const char *set_days(struct pki *pki, const char *text)
{
    char *end;
    pki->days = strtol(text, &end, 10);
    return *end == '\0' && pki->days != 0 && pki->days <= 36500 && pki->days >= -36500
               ? NULL
               : "days, 1 to 36500, or -36500 to -1";
}

static const char *set_new_key(struct pki *pki, const char *text)
{
    (void)text;
    pki->new_key = true;
    return NULL;
}

static const char *set_owner(struct pki *pki, const char *text)
{
    pki->owner_name = text;
    return text[0] != '\0' ? NULL : "a user's name";
}

static const char *set_address(struct pki *pki, const char *text)
{
    char host[PKI_ADDRESS_MAX_BYTES + 1];
    char port[6];
    pki->address = text;
    return pki_address_split(text, host, port) ? NULL : "HOST, HOST:PORT or [IPv6]:PORT";
}

static const char *set_count(struct pki *pki, const char *text)
{
    char *end;
    pki->node_count = strtol(text, &end, 10);
    return *end == '\0' && pki->node_count >= 1 && pki->node_count <= 1000000
               ? NULL
               : "how many nodes, 1 to 1000000";
}

static const char *set_once(struct pki *pki, const char *text)
{
    (void)text;
    pki->node_count = 1;
    return NULL;
}

static const char *set_renew(struct pki *pki, const char *text)
{
    (void)text;
    pki->renew = true;
    return NULL;
}

/* Reads the first line of a file: other users can see what stands on a command line. Free it. */
static char *read_code(const char *path)
{
    struct pki_bytes file;
    if (!pki_read(path, &file)) {
        return NULL;
    }
    file.bytes[strcspn(file.bytes, "\r\n")] = '\0';
    return file.bytes;
}

static const char *set_code(struct pki *pki, const char *text)
{
    if (pki->secret_count == PKI_SECRETS_MAX) {
        return "16 codes at most";
    }
    char *code = text[0] == '@' ? read_code(text + 1) : strdup(text);
    if (code == NULL || strlen(code) < PKI_SECRET_MIN_BYTES) {
        free(code);
        return "a code that was agreed in advance, of at least 20 characters, or @FILE with one ('openssl "
               "rand -hex "
               "16' makes one; the short code that people compare is new each time)";
    }
    pki->secrets[pki->secret_count++] = code;
    return NULL;
}

static void free_codes(struct pki *pki)
{
    while (pki->secret_count > 0) {
        char *code = pki->secrets[--pki->secret_count];
        explicit_bzero(code, strlen(code));
        free(code);
    }
}

struct pki_option {
    const char *name;
    unsigned bit;
    bool has_argument;
    const char *(*set)(struct pki *pki, const char *text);
};

static const struct pki_option pki_options[] = {
    {"--dir", TAKES_DIR, true, set_folder},         {"--request", TAKES_REQUEST, true, set_request},
    {"--days", TAKES_DAYS, true, set_days},         {"--new-key", TAKES_NEW_KEY, false, set_new_key},
    {"--owner", TAKES_OWNER, true, set_owner},      {"--listen", TAKES_LISTEN, true, set_address},
    {"--count", TAKES_COUNT, true, set_count},      {"--once", TAKES_COUNT, false, set_once},
    {"--yes-code", TAKES_YES_CODE, true, set_code}, {"--renew", TAKES_RENEW, false, set_renew},
    {"--code", TAKES_CODE, true, set_code},
};

static const struct pki_option *find_option(const struct pki_command *command, const char *text)
{
    for (size_t i = 0; i < sizeof pki_options / sizeof pki_options[0]; i++) {
        if (strcmp(pki_options[i].name, text) == 0 && (command->takes & pki_options[i].bit) != 0) {
            return &pki_options[i];
        }
    }
    return NULL;
}

/* --- Usage --- */

static enum exit_code pki_usage(void)
{
    fputs(
        "usage: commctl pki init [--dir DIR] [--days N]       make the cluster's authority\n"
        "       commctl pki admit [--dir DIR] [--listen ADDRESS[:PORT]] [--once | --count N] [--renew] "
        "[--days N]\n"
        "                         [--yes-code CODE|@FILE]...  where the authority is: certify nodes that "
        "join\n"
        "       commctl pki join AUTHORITY[:PORT] [NAME] [--dir DIR] [--owner USER] [--code CODE|@FILE]\n"
        "                                                     on a node: get its certificate from 'admit'\n"
        "       commctl pki request NAME [--dir DIR] [--owner USER]\n"
        "                                                     on a node: make its key and a request\n"
        "       commctl pki issue NAME [--request FILE] [--dir DIR] [--days N]\n"
        "                                                     certify a request; without one, make the key, "
        "too\n"
        "       commctl pki renew NAME [--new-key | --request FILE] [--dir DIR] [--days N]\n"
        "                                                     a new certificate, by default for the same "
        "key\n"
        "       commctl pki revoke NAME|SERIAL|FILE [--dir DIR]\n"
        "                                                     write the revocation list anew, with these on "
        "it\n"
        "       commctl pki show [NAME|FILE] [--dir DIR]      show what was issued, or what is in a file\n"
        "Files are DIR/ca.crt, ca.key, ca.crl, issued.txt, NAME.crt, NAME.key, NAME.csr; DIR is . by "
        "default, for "
        "join\n" PKI_NODE_FOLDER
        ". NAME is a node's name: letters, digits and hyphens, at most 63, not \"ca\"; for "
        "join the\nhost's name by default. PORT is TCP, " PKI_PORT_DEFAULT " by default.\n",
        stderr);
    return EXIT_CODE_USAGE;
}

/* Null when it is right, else what was expected. */
static const char *expected_subject(const struct pki_command *command, const struct pki *pki)
{
    const char *name = pki->name;
    switch (command->subject) {
    case PKI_NOBODY:
        return name == NULL ? NULL : "only options";
    case PKI_AUTHORITY_AND_NODE:
        if (pki->address == NULL) {
            return "the address of 'commctl pki admit'";
        }
        if (name == NULL) {
            return NULL;
        }
        break;
    case PKI_NODE:
        break;
    case PKI_ANYTHING:
        return name != NULL ? NULL : "a node's name, a serial number or a file";
    case PKI_ANYTHING_OR_NOBODY:
        return NULL;
    }
    return name != NULL && pki_name_is_valid(name)
               ? NULL
               : "a node's name: letters, digits and hyphens, at most 63, not \"ca\"";
}

static enum exit_code pki_wrong(const struct pki_command *command, const char *what, const char *given,
                                const char *expected)
{
    char verb[32];
    (void)snprintf(verb, sizeof verb, "pki %s", command->name);
    (void)usage_wrong(verb, what, given, expected, "");
    return pki_usage();
}

/* What is no option: the authority's address for join, else the name. */
static enum exit_code set_subject(struct pki *pki, const struct pki_command *command, const char *text)
{
    if (text[0] == '-' || text[0] == '\0' || pki->name != NULL) {
        return pki_wrong(command, text, NULL, "one name at most, and options of this command");
    }
    if (command->subject == PKI_AUTHORITY_AND_NODE && pki->address == NULL) {
        const char *expected = set_address(pki, text);
        return expected == NULL ? EXIT_CODE_OK : pki_wrong(command, text, NULL, expected);
    }
    pki->name = text;
    return EXIT_CODE_OK;
}

static enum exit_code pki_parse(struct pki *pki, const struct pki_command *command, int argc, char **argv)
{
    for (int i = 2; i < argc; i++) {
        const struct pki_option *option = find_option(command, argv[i]);
        if (option == NULL && argv[i][0] == '-' && i + 1 == argc) {
            return pki_wrong(command, argv[i], NULL, "an option of this command, with its argument");
        }
        if (option == NULL) {
            enum exit_code code = set_subject(pki, command, argv[i]);
            if (code != EXIT_CODE_OK) {
                return code;
            }
            continue;
        }
        if (option->has_argument && ++i == argc) {
            return pki_wrong(command, option->name, NULL, "an option of this command, with its argument");
        }
        const char *expected = option->set(pki, argv[i]);
        if (expected != NULL) {
            return pki_wrong(command, option->name, argv[i], expected);
        }
    }
    if (pki->folder == NULL) {
        pki->folder = command->subject == PKI_AUTHORITY_AND_NODE ? PKI_NODE_FOLDER : ".";
    }
    const char *expected = expected_subject(command, pki);
    if (expected != NULL) {
        return pki_wrong(command, pki->name != NULL ? pki->name : "nothing", NULL, expected);
    }
    if (pki->new_key && pki->request_path != NULL) {
        return pki_wrong(command, "--new-key and --request", NULL, "one of them, or none");
    }
    return EXIT_CODE_OK;
}

enum exit_code verb_pki(struct commctl *commctl, int argc, char **argv)
{
    struct pki pki = {.commctl = commctl, .now_s = time(NULL)};
    for (size_t i = 0; argc >= 2 && i < sizeof pki_commands / sizeof pki_commands[0]; i++) {
        const struct pki_command *command = &pki_commands[i];
        if (strcmp(argv[1], command->name) == 0) {
            enum exit_code code = pki_parse(&pki, command, argc, argv);
            code = code == EXIT_CODE_OK ? command->run(&pki) : code;
            free_codes(&pki);
            return code;
        }
    }
    (void)usage_wrong("pki", argc >= 2 ? argv[1] : "nothing", NULL,
                      "init, request, issue, renew, revoke, show, admit or join", "");
    return pki_usage();
}
