#include <stdio.h>

#include "client/commctl/commctl.h"

enum exit_code usage_wrong(const char *verb, const char *what, const char *given, const char *expected,
                           const char *usage)
{
    fprintf(stderr, "commctl: %s%s%s%s", verb != NULL ? verb : "", verb != NULL ? ": " : "", what,
            given != NULL ? " " : "");
    fprintf(stderr, "%s: expected %s\n%s",
            given == NULL    ? ""
            : *given != '\0' ? given
                             : "\"\"",
            expected, usage);
    return EXIT_CODE_USAGE;
}

const char *usage_option_name(const struct option *options, int option, char text[32])
{
    for (; options->name != NULL; options++) {
        if (options->val == option) {
            snprintf(text, 32, "--%s", options->name);
            return text;
        }
    }
    snprintf(text, 32, "-%c", option);
    return text;
}
